"""A radiance field on three feature planes with coarse and fine ray samples; fp16 autocast, GradScaler."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

NEAR, FAR, COARSE, FINE = 1.0, 4.0, 48, 64


class Planes(nn.Module):
    def __init__(self, features: int = 16, resolution: int = 192) -> None:
        super().__init__()
        self.planes = nn.Parameter(0.1 * torch.randn(3, features, resolution, resolution))
        self.density = nn.Sequential(nn.Linear(3 * features, 128), nn.ReLU(), nn.Linear(128, 65))
        self.colour = nn.Sequential(
            nn.Linear(64 + 9, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3)
        )

    def forward(self, points: torch.Tensor, directions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """points, directions: (R, S, 3)."""
        rays, samples, _ = points.shape
        flat = (points / FAR).reshape(1, -1, 3)
        pairs = torch.stack([flat[..., [0, 1]], flat[..., [0, 2]], flat[..., [1, 2]]]).view(3, -1, 1, 2)
        read = F.grid_sample(self.planes, pairs, align_corners=True)  # (3, features, R * S, 1)
        h = self.density(read.squeeze(-1).permute(2, 0, 1).reshape(rays * samples, -1))
        view = directions.reshape(-1, 3)
        view = torch.cat([view, torch.sin(2 * view), torch.cos(2 * view)], dim=-1)
        colour = torch.sigmoid(self.colour(torch.cat([h[:, 1:], view], dim=-1)))
        return F.softplus(h[:, 0] - 1).view(rays, samples), colour.view(rays, samples, 3)


def weights_of(density: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    gap = torch.diff(depth, dim=1, append=torch.full_like(depth[:, :1], FAR + 0.1))
    alpha = 1 - torch.exp(-density.float() * gap)
    through = torch.cumprod(1 - alpha + 1e-10, dim=1)
    return alpha * torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], dim=1)


def finer(depth: torch.Tensor, weights: torch.Tensor, count: int) -> torch.Tensor:
    """More depths where the weights are large, by the inverse of their cumulative sum."""
    share = torch.cumsum(weights + 1e-5, dim=1)
    share = share / share[:, -1:]
    u = torch.rand(depth.shape[0], count, device=depth.device)
    index = torch.searchsorted(share, u).clamp(max=depth.shape[1] - 1)
    jitter = torch.rand_like(u) * (FAR - NEAR) / depth.shape[1]
    return torch.sort(torch.cat([depth, depth.gather(1, index) + jitter], dim=1), dim=1).values


def plane_field(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(13)
    model = Planes().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-15)
    scaler = torch.amp.GradScaler(device)
    origins = torch.zeros(size, 3, device=device)
    directions = F.normalize(torch.randn(size, 3, device=device), dim=1)
    pixels = torch.rand(size, 3, device=device)

    def render(depth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = origins[:, None] + directions[:, None] * depth[..., None]
        density, colour = model(points, directions[:, None].expand_as(points))
        weights = weights_of(density, depth)
        return (weights[..., None] * colour).sum(dim=1), weights

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        edges = torch.linspace(NEAR, FAR, COARSE + 1, device=device)[:-1]
        depth = edges + torch.rand(size, COARSE, device=device) * (FAR - NEAR) / COARSE
        with torch.autocast(device_type=device.split(":")[0], dtype=torch.float16):
            rough, weights = render(depth)
            fine, _ = render(finer(depth, weights.detach(), FINE))
            loss = F.mse_loss(fine, pixels) + 0.1 * F.mse_loss(rough, pixels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step
