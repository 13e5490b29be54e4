"""The radiance field, the super-resolution network, the discriminators and their losses."""
