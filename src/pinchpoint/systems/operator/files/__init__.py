"""Mesh files: VTK PolyData without a library, and the formats of meshio."""
