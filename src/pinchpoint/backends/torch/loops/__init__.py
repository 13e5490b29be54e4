"""Loops of a script's own code that train: they are ended early, so that what follows them is observed."""
