"""Sampling, optimizers and the compiled training step."""
