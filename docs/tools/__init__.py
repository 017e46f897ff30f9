"""What builds and checks the documentation.

- `references`: the pages that follow from the code: commands, study files, chips, networks, models,
  Python; `tables` writes their tables, and reads what a docstring says of its attributes.
- `measured`: the tables of accuracy, and of what can be expressed; `every_row`: all measured
  rows as pages, CSV and drawings; `truth` keeps the README's.
- `peers`: predictions of other models beside ours; `dataset`: data files with their columns,
  sources and licences.
- `site`: hooks of mkdocs: adds these pages, notebooks and documents from elsewhere in the checkout.
- `formulas`: fences of LaTeX as MathML.
- `links`: where the links of Markdown files lead.
- `snippets`: the commands and code of Markdown files, run as a reader runs them.
- `notebooks`: runs the notebooks, and writes or compares their output.
- `release`: wheel and sdist, tried in fresh environments.
"""
