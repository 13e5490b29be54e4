"""Plans: what fits a budget, by prediction. The public verb is `pinchpoint.flow.plan.plan`."""
