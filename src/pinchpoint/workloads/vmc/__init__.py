"""Neural wave functions by variational Monte Carlo: molecules and atoms, all electrons, in JAX.

Letters used in this folder: B walkers, n electrons (up first, then down), M nuclei, D determinants, P parameters. Lengths are
in bohr, energies in hartree. A walker is an array (n, 3).
"""
