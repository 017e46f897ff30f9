"""Runs what the documentation shows, and builds it: ``make docs-test``, not ``make test``."""
