"""`check`: scan, predict and profile a script, and give one ranked answer."""
