"""torch without its device: fake runs, and real ones."""
