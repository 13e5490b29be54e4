"""`explain-memory`: how each memory trick affects one training iteration."""
