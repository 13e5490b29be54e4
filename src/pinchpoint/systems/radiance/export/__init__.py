"""What a trained run is exported to: meshes, pictures, depth maps and grids of objects."""
