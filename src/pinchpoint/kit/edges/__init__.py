"""Graphs between points (torch): neighbour search, edge lists, and transforms over edges with flat memory."""
