"""Forecasting: the peak of a step from a fake run, replayed through a model of the allocator."""
