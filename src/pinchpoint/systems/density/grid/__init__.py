"""Crystals, their grids and the sweep of a model over them."""
