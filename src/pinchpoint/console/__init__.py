"""Everything the commands print with: tables, progress bars, shared options and signal handling."""
