"""Prepares a model and some data on the GPU, and forgets to train."""

import torch
from torch import nn

model = nn.Linear(1000, 1000).cuda()
data = torch.randn(64, 1000, device="cuda")
print("parameters:", sum(p.numel() for p in model.parameters()), "points:", len(data))
