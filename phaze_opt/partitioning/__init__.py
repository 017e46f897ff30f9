"""The published placement problems (NeurIPS 2020, Phaze) and their exact solutions."""
