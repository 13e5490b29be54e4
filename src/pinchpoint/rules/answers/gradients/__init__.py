"""PP50x: gradients that do not reach what they should train, and modes of a model."""
