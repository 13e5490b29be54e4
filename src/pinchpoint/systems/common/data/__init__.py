"""Data set folders, worker processes and sample files of every system."""
