"""Streaming: apply a function to any number of points, in chunks that fit a budget; see `stream.stream`."""
