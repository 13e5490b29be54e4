"""The command line: one module a verb; each parses, calls, prints and returns an exit code."""
