"""Rays, volume rendering and its kernels."""
