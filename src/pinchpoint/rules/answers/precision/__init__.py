"""PP51x: mixed precision and scaling."""
