"""One training step, and trained weights: packaged, of a run, or exported to a file."""
