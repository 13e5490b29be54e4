"""Values and sizes that depend on data: computed exactly, calibrated, or unknown."""
