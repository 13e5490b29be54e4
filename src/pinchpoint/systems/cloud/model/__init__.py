"""The network over voxels, the views it trains on, and its losses."""
