"""Figures of a Study, one file each: `draw(study)` gives a matplotlib figure, or None when there is nothing to show."""
