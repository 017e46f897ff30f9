"""The model held against measured silicon and training runs.

`measured` says what a measured table is, `registry` lists the functions that predict each group of
them, and the other modules hold one kind each (`reserved`: what an allocator keeps in `runs`). What
was measured is in ``data``: CSV files, and beside each a TOML file that says who measured, when and
with what. Rows that the model cannot express stand in ``unexpressed.csv``, each with the reason;
`expressible` counts them by it.
"""
