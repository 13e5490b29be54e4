"""Timing, measured points and studies: what a workload really takes."""
