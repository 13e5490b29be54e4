"""What the trainers of all systems share: settings, schedule, loop, checkpoints, log, stopping, precision."""
