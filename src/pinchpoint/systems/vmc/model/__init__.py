"""The wave function: networks, determinants, envelopes and local energies."""
