"""Volumetric and structure files: CHGCAR, cube, npz, POSCAR."""
