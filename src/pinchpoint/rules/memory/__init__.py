"""PP3xx: memory is held or used without need."""
