"""Memory that CUDA kernels and libraries allocate in addition to their outputs."""
