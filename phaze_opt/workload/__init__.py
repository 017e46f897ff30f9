"""What is trained: captured operator graphs of a model's layers."""
