"""PP4xx: data is copied without need, or slower than it could be."""
