"""The command line: one module per verb; each parses, calls, prints and returns an exit code."""
