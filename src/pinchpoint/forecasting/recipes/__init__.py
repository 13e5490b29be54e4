"""Training and generation from a model's configuration: the script that a tool would run."""
