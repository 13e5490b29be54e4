"""Weather stations with a few latent vectors: cross attention in and out, self attention, no mask, RAdam."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Attend(nn.Module):
    """Pre-norm attention of `x` to `y`, then a feed-forward layer."""

    def __init__(self, width: int, other: int, heads: int) -> None:
        super().__init__()
        self.norm_x, self.norm_y = nn.LayerNorm(width), nn.LayerNorm(other)
        self.attention = nn.MultiheadAttention(width, heads, kdim=other, vdim=other, batch_first=True)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = self.norm_y(y)
        x = x + self.attention(self.norm_x(x), y, y, need_weights=False)[0]
        return x + self.feed(x)


class StationNet(nn.Module):
    def __init__(self, features: int = 22, width: int = 256, latents: int = 160) -> None:
        super().__init__()
        self.embed = nn.Linear(features, 160)
        self.latents = nn.Parameter(0.02 * torch.randn(latents, width))
        self.read = Attend(width, 160, heads=4)
        self.think = nn.ModuleList(Attend(width, width, heads=8) for _ in range(6))
        self.place = nn.Linear(2, 128)
        self.write = Attend(128, width, heads=2)
        self.head = nn.Linear(128, 3)

    def forward(self, observed: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        z = self.latents.expand(observed.shape[0], -1, -1)
        z = self.read(z, self.embed(observed))
        for block in self.think:
            z = block(z, z)
        return self.head(self.write(self.place(queries), z))


def stations(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(17)
    model = StationNet().to(device)
    optimizer = torch.optim.RAdam(model.parameters(), lr=4e-4)
    observed = torch.randn(size, 700, 22, device=device)
    queries = torch.rand(size, 200, 2, device=device)
    weather = torch.randn(size, 200, 3, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(observed, queries), weather)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
