"""Point cloud files: PLY, LAS, LAZ, NPZ and Pointcept folders."""
