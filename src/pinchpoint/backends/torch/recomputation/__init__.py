"""What recomputing a module in the backward pass would free and cost, and running a script with it."""
