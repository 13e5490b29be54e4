"""Forecasting: a fake run of a step is replayed through a model of the allocator to predict its peak."""
