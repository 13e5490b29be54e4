"""Engines: other machines that run independent jobs, through Ray or SLURM."""
