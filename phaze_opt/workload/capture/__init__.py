"""From a torch module to operator graphs: everything that needs torch."""
