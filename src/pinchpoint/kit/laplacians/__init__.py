"""Laplacians of scalar functions, with a choice of algorithm and chunk size (JAX)."""
