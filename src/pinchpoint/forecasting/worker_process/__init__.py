"""What runs inside the worker process: loading a target, running it on fake tensors, and its Forecast."""
