"""A sinusoidal network fitted to a smooth vector field on random points."""

import math

import torch
from torch import nn


class Sine(nn.Module):
    def __init__(self, inputs, outputs, frequency=30.0, first=False):
        super().__init__()
        self.frequency = frequency
        self.linear = nn.Linear(inputs, outputs)
        bound = 1 / inputs if first else math.sqrt(6 / inputs) / frequency
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.frequency * self.linear(x))


def siren(size, device):
    torch.manual_seed(11)
    width = 352
    layers = [Sine(3, width, first=True)] + [Sine(width, width) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(width, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.99))

    def step():
        points = 2 * torch.rand(size, 3, device=device) - 1
        radius = points.norm(dim=-1, keepdim=True)
        target = torch.cat([points * torch.exp(-radius), torch.cos(4 * radius)], dim=-1)
        loss = ((model(points) - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
