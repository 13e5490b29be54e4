"""PP1xx: the program waits for the device, or drives it with many small operations."""
