"""One rank of a parallel job: process groups without peers, collectives, and data parallel training."""
