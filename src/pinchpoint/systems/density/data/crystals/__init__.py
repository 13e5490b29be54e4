"""Valence densities of crystals: a plane-wave code, and the oxides that the packaged weights learn."""
