"""Errors, records, workloads, units: what every other layer stands on."""
