"""One training step, the budget search, runs, and trained weights: packaged, of a run, or in a file."""
