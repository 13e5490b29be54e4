"""Crown heights from an aerial point cloud: points in range are scored, the upper half is refined, AdamW."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

EXTENT = 60.0
RANGE = 52.0


class CrownNet(nn.Module):
    def __init__(self, width: int = 160) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(5, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.score = nn.Linear(width, 1)
        self.refine = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 1)
        )

    def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.encode(points)
        score = self.score(h).squeeze(-1)
        keep = score > score.detach().median()
        kept = h[keep] * torch.sigmoid(score[keep]).unsqueeze(-1)
        return self.refine(kept).squeeze(-1), score, keep


def tree_crowns(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(31)
    model = CrownNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    place = (2 * torch.rand(size, 3, device=device) - 1) * EXTENT
    echo = torch.rand(size, 2, device=device)
    height = torch.sin(place[:, 0] / 9) * torch.cos(place[:, 1] / 7) + 0.2 * echo[:, 0]

    def step() -> torch.Tensor:
        near = place[:, :2].norm(dim=1) < RANGE
        points = torch.cat([place[near] / EXTENT, echo[near]], dim=1)
        target = height[near]
        optimizer.zero_grad(set_to_none=True)
        guess, score, keep = model(points)
        loss = nn.functional.smooth_l1_loss(guess, target[keep]) + 1e-3 * score.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
