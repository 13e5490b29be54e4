"""Scenes, procedural rooms, datasets and training batches."""
