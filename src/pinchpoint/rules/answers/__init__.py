"""PP5xx: the program computes something else than it says, or breaks on a supported version."""
