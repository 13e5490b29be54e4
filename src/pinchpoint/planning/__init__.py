"""Planning: what fits a budget, by prediction. The public function is `pinchpoint.planning.plan.plan`."""
