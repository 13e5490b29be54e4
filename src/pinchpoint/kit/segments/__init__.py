"""Points grouped by cell (torch): grouping, reductions and random subsets."""
