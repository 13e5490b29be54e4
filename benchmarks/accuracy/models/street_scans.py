"""A two-stage laser-scan network: masks of the data and of its own score drop far and background returns."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class ScanNet(nn.Module):
    def __init__(self, width: int = 144, kinds: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(5, 96), nn.ReLU(), nn.Linear(96, width), nn.LayerNorm(width), nn.ReLU()
        )
        self.score = nn.Linear(width, 1)
        self.refine = nn.Sequential(nn.Linear(width, 288), nn.GELU(), nn.Linear(288, 288), nn.GELU())
        self.kind = nn.Linear(288, kinds)
        self.box = nn.Linear(288, 7)

    def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.encoder(points)
        score = self.score(h).squeeze(1)
        keep = score > 0
        near = self.refine(h[keep])
        return score, keep, self.kind(near), self.box(near)


def street_scans(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(29)
    model = ScanNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    cloud = torch.randn(size, 5).to(device)
    kinds = torch.randint(0, 8, (size,)).to(device)
    boxes = torch.randn(size, 7).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        valid = cloud[:, :3].norm(dim=1) < 2.0
        points, kind, box = cloud[valid], kinds[valid], boxes[valid]
        score, keep, kind_logits, box_found = model(points)
        loss = F.binary_cross_entropy_with_logits(score, (kind > 3).float())
        loss = loss + F.cross_entropy(kind_logits, kind[keep]) + F.smooth_l1_loss(box_found, box[keep])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
