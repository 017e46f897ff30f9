"""On what it is trained: accelerators, their area and energy, and the network between them."""
