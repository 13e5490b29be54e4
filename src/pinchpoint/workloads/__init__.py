"""Shipped workloads: one folder each, found by walking."""
