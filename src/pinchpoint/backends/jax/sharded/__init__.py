"""JAX programs over several devices: what XLA's partitioner makes of them, per device."""
