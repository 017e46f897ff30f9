"""Constants of chips and links from measurements.

`bounded` fits a few constants within the bounds that physics sets, says how well the rows determine
each, and leaves those that they do not. Every other module says which constants one kind of
operator has, and what the model predicts for measured rows:

- `collectives`: one level of a network.

This room stands left of all that knows of training runs: a constant comes from a table of operators
or from a data sheet.
"""
