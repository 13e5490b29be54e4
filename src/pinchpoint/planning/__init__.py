"""Plans: what fits a budget, by prediction. The public verb is `pinchpoint.planning.plan.plan`."""
