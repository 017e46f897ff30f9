"""What should train the models of 2026: questions, their answers with proofs, and the page.

``questions`` says what is asked, ``answers`` finds it, ``page`` writes it; ``python -m
studies.atlas`` does all of it, and goes on where a run was broken off. ``believable`` sets every
winner against what was built and measured, ``robustness`` ranks the best designs again under joint
draws of all constants.
"""
