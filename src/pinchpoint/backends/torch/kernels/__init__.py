"""Memory that CUDA kernels and libraries allocate besides their outputs."""
