"""Code shared by the systems: the training loop, run and dataset folders, checkpoints, workers and budgets."""
