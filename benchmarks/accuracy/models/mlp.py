"""A plain MLP fitted to a field over points."""

import torch
import torch.nn.functional as F
from torch import nn


def mlp(size: int, device: str):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 384), nn.GELU()]
    for _ in range(4):
        layers += [nn.Linear(384, 384), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(384, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    points = torch.rand(size, 3, device=device)
    target = torch.sin(points.sum(-1, keepdim=True))

    def step():
        optimizer.zero_grad()
        loss = F.mse_loss(model(points), target)
        loss.backward()
        optimizer.step()
        return loss

    return step
