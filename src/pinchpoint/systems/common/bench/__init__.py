"""Comparisons of variants and public peers with a baseline: their cases, how they are timed, their record."""
