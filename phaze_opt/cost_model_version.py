"""The version of the cost model, in a module of its own: to name it nothing heavy is loaded."""

COST_MODEL_VERSION = "21"
"""Changes whenever any number that `evaluate` returns does; a golden file holds that."""
