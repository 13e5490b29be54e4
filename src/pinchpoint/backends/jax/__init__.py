"""JAX: XLA's memory analysis without a GPU, a liveness walk of the jaxpr, and measurement on a device."""
