"""Which modules to recompute in the backward pass so that a script fits a budget at the least extra time."""
