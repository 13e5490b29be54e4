"""One training step, its memory budget, run folders and records."""
