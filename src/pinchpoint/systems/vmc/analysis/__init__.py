"""Statistics of sampled energies, plots, and the electron density as a cube file."""
