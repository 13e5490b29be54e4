"""The training loop, runs, checkpoints and logs of every system."""
