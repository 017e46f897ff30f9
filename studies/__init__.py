"""Studies that come with the project, and the program that runs those of the paper."""
