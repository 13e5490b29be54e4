"""Volumetric and structure files: CHGCAR, cube, npz, JSON, POSCAR, scattered probes."""
