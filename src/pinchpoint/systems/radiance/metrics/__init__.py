"""Distances between sets of images, and checks of consistency between views."""
