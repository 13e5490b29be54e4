"""Studies: how the time and memory of a workload grow with its size, predicted or measured."""
