"""Records as pages and figures; reads nothing else."""
