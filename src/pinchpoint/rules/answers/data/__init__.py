"""PP53x: values that belong to other data, to a later time, or to nothing."""
