"""`pinchpoint demo`: the stages of each system, the processes that run them, and the final table."""
