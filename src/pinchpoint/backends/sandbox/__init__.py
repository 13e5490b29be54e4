"""Running a user's script without side effects: a file overlay, inert trackers, and a process guard."""
