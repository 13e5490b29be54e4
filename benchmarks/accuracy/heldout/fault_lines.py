"""A U-Net on seismic sections: instance norm, strided convolutions, bilinear upsampling, focal loss."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


class Double(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.norm1 = nn.InstanceNorm2d(after, affine=True)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.norm2 = nn.InstanceNorm2d(after, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(self.norm1(self.first(x)), 0.01)
        return F.leaky_relu(self.norm2(self.second(x)), 0.01)


class FaultNet(nn.Module):
    def __init__(self, kinds: int = 4) -> None:
        super().__init__()
        widths = (28, 56, 112, 224)
        self.enter = Double(2, widths[0])
        self.downs = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths))
        self.encoders = nn.ModuleList(Double(w, w) for w in widths[1:])
        self.narrows = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in pairwise(widths))
        self.decoders = nn.ModuleList(Double(w, w) for w in widths[:-1])
        self.leave = nn.Conv2d(widths[0], kinds, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        skips = []
        for down, encode in zip(self.downs, self.encoders, strict=True):
            skips.append(x)
            x = encode(down(x))
        for narrow, decode in zip(reversed(self.narrows), reversed(self.decoders), strict=True):
            x = F.interpolate(narrow(x), scale_factor=2, mode="bilinear", align_corners=False)
            x = decode(x + skips.pop())
        return self.leave(x)


def focal(logits: torch.Tensor, truth: torch.Tensor, gamma: float = 2.0) -> torch.Tensor:
    entropy = F.cross_entropy(logits, truth, reduction="none")
    return ((1 - torch.exp(-entropy)) ** gamma * entropy).mean()


def fault_lines(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(8)
    model = FaultNet().to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    sections = torch.randn(size, 2, 144, 208, device=device)
    labels = torch.randint(0, 4, (size, 144, 208), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = focal(model(sections), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
