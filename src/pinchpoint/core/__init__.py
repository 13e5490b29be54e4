"""Foundations: errors, records, workloads, targets, settings and units."""
