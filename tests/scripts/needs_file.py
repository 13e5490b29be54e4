"""Starts from weights that are not there."""

import torch
from torch import nn

model = nn.Linear(16, 1).cuda()
model.load_state_dict(torch.load("pretrained/weights.pt", map_location="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 16, device="cuda")).sum().backward()
    optimizer.step()
