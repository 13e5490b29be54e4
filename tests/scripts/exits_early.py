"""Refuses to start with the exit code its own checks give."""

import sys

import torch
from torch import nn

model = nn.Linear(16, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if "--really" not in sys.argv:
    print("pass --really to train", file=sys.stderr)
    sys.exit(3)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 16, device="cuda")).sum().backward()
    optimizer.step()
