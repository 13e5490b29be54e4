"""Running a user's script with no harm: an overlay for files, stand-ins for trackers, a guard for processes."""
