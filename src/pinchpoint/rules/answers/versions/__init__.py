"""PP54x: names that a version of torch, JAX, or XLA does not have, or will not have."""
