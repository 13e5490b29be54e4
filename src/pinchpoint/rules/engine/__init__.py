"""What all rules share: reading files, names and values in a syntax tree, fixes, settings, output formats."""
