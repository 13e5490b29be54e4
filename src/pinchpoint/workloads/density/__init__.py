"""density: the electron density of a crystal on a grid; here its volumetric files and structures (numpy)."""
