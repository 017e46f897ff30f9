"""Black-box problems with proven optima: ``load`` one, ask it for points, evaluate them.

``problem`` reads the bundled tables and needs numpy alone; ``python -m studies.benchmark`` lets the
samplers of Optuna search them (``searches``), writes the page (``page``), and with ``--tables``
computes the tables with the cost model (``tables``) from the studies in ``specs``.
"""

from .problem import VERSION, Axis, Certificate, Problem, load, names

__all__ = ["VERSION", "Axis", "Certificate", "Problem", "load", "names"]
