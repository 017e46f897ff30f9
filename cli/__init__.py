"""The command line, installed as ``phaze_opt.cli``."""
