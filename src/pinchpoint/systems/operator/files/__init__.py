"""Mesh files with fields: own readers and writers of VTK and OBJ, and the formats of meshio and h5py."""
