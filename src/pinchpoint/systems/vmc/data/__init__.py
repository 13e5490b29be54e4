"""Molecules, xyz files and Hartree-Fock orbitals."""
