"""Triton kernels of small MLPs over edges, used by `tile_mlp`."""
