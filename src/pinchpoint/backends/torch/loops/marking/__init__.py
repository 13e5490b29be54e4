"""Changes to the code of a script before it runs, so that it can be followed; lines keep their numbers."""
