"""Datasets of structures with reference densities."""
