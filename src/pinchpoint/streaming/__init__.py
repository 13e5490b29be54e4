"""Streaming: any number of points through a function, in chunks that fit a budget; see `stream.stream`."""
