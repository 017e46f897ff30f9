"""The best order of one layer's operators on the cores of one chip."""
