"""Code that the systems share: training loop, run and dataset folders, checkpoints, workers, budgets."""
