"""Datasets of bodies with known fields."""
