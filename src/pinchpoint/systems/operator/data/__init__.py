"""Datasets of bodies with known fields, and the solvers that create them."""
