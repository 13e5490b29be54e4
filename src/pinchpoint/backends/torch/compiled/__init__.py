"""torch.compile on the simulated device: torch's own compiler runs up to the code of its kernels."""
