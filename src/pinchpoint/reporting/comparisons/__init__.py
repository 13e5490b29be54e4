"""Comparisons of two records of the same kind: what changed, as plain data, Markdown, and a page."""
