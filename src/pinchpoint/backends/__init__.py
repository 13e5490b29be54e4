"""Interfaces to PyTorch and JAX, which are imported only when they are needed."""
