"""One training step, its CUDA graphs, its memory budget and run folders."""
