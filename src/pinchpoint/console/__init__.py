"""Console output of the commands: tables, progress bars, shared options and signal handling."""
