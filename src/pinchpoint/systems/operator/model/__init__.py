"""The operator network and the graphs it reads."""
