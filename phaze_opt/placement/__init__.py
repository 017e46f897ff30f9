"""How the layers are spread over the devices of a cluster."""
