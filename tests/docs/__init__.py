"""The documentation: what needs no more than the project, and in `run` what takes longer."""
