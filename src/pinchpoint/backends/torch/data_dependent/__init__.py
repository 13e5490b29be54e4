"""Values and sizes that depend on data: computed, calibrated or unknown."""
