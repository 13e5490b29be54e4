"""PP52x: random numbers that repeat or are not used."""
