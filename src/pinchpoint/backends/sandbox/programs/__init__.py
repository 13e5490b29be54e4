"""Which other programs a predicted script may run, and where they are."""
