"""PyTorch: runs on a simulated CUDA device, measurement on a real device, and streaming."""
