"""How long each operator takes, on one core and on all cores."""
