"""Graphs between points: neighbour search, edge lists, and transforms over edges with flat memory (torch)."""
