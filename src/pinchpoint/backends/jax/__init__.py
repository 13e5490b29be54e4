"""JAX: XLA's memory analysis for a card that is not here, a jaxpr liveness walk, and real measurement."""
