"""Constants of chips and links from measurements.

`constants` holds what a fit starts from and what it found. `least_squares` fits a few constants
within the bounds that physics sets, says how well the rows determine each, and leaves those that
they do not. The other modules say which constants one kind of operator has, and what the model
predicts for measured rows:

- `products`: arrays, clocks and global buffer of a chip, from matrix products;
- `quantised_products`: what a measured call in fp8 holds beside its product, which belongs to its
  table;
- `expert_layers`: what a measured layer of experts holds beside its grouped products, likewise;
- `vector`: the HBM of a chip, from vector operators;
- `attention`: the overlap of products and softmax in fused attention;
- `collectives`: one level of a network.

`calibrate` puts them together, and `measured_files` reads their rows.

This room stands left of all that knows of training runs: a constant comes from a table of operators
or from a data sheet.
"""
