"""The small workloads of the docs, one folder each; the toolkit finds them by walking this folder."""
