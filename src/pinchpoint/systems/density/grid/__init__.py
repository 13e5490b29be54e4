"""Crystals, their grids, and the evaluation of a model on all points of a grid."""
