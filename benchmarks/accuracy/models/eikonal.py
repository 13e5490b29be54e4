"""A signed-distance field with the eikonal loss, which contains the gradient of the output."""

import torch
from torch import nn


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(30.0 * x)


def eikonal(size: int, device: str):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 256), Sine(), nn.Linear(256, 256), Sine(), nn.Linear(256, 256), Sine(), nn.Linear(256, 1)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    surface = nn.functional.normalize(torch.randn(size // 4 or 1, 3, device=device), dim=-1)

    def step():
        optimizer.zero_grad()
        points = torch.empty(size, 3, device=device).uniform_(-1.5, 1.5).requires_grad_()
        distance = model(points)
        (slope,) = torch.autograd.grad(distance, points, torch.ones_like(distance), create_graph=True)
        eikonal_loss = (slope.norm(dim=-1) - 1).pow(2).mean()
        loss = model(surface).abs().mean() + 0.1 * eikonal_loss
        loss.backward()
        optimizer.step()
        schedule.step()

    return step
