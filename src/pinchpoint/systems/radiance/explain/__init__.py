"""`explain-memory`: what each memory trick does to one training iteration."""
