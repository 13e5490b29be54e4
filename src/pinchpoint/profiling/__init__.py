"""profile: run a script or function for real, and record where its time and memory go."""
