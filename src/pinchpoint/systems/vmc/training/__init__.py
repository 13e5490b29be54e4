"""Memory budgets, run folders and records."""
