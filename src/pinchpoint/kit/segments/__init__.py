"""Points grouped by cell: grouping, reductions and random subsets (torch)."""
