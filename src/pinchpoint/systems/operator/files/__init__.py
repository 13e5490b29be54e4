"""Mesh files: reading and writing VTK, STL and the other formats of meshio."""
