"""Streaming any number of points through a function, in chunks chosen for a budget: `pinchpoint.stream`."""
