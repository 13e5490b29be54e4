"""Stand-ins for packages whose kernels cannot be installed or run without CUDA."""
