"""Figures of a Study, one file each: `draw(study)` returns a matplotlib figure, or None if it has no data."""
