"""Distances between sets of images, and the consistency of views."""
