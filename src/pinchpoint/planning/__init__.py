"""Planning: predict what fits a budget. The public function is `pinchpoint.planning.plan.plan`."""
