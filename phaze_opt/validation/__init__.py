"""The model held against measured silicon and training runs."""
