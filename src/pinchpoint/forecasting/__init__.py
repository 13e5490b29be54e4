"""Predicting peaks: fake runs replayed through a model of the allocator."""
