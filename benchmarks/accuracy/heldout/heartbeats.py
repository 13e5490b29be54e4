"""Dilated gated convolutions on an electrocardiogram: AveragedModel as EMA, clipping, four micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

MICRO_BATCHES = 4


class Gated(nn.Module):
    def __init__(self, channels: int, skip: int, dilation: int) -> None:
        super().__init__()
        self.filter = nn.Conv1d(channels, 2 * channels, 3, padding=dilation, dilation=dilation)
        self.norm = nn.GroupNorm(8, channels)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, gate = self.filter(self.norm(x)).chunk(2, dim=1)
        h = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.residual(h), self.skip(h)


class BeatNet(nn.Module):
    def __init__(self, leads: int = 12, channels: int = 192, skip: int = 144, rhythms: int = 24) -> None:
        super().__init__()
        self.enter = nn.Conv1d(leads, channels, 7, padding=3)
        self.layers = nn.ModuleList(Gated(channels, skip, 2 ** (i % 5)) for i in range(10))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(skip, 512), nn.ReLU(), nn.Linear(512, rhythms))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        total: torch.Tensor | float = 0.0
        for layer in self.layers:
            x, out = layer(x)
            total = total + out
        assert isinstance(total, torch.Tensor)
        return self.head(total.mean(dim=2))


def heartbeats(size: int, device: str) -> Callable[[], float]:
    torch.manual_seed(23)
    model = BeatNet().to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.995))
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4)
    traces = torch.randn(MICRO_BATCHES, size, 12, 1000, device=device)
    rhythms = (torch.rand(MICRO_BATCHES, size, 24, device=device) < 0.1).float()

    def step() -> float:
        total = 0.0
        for trace, rhythm in zip(traces, rhythms, strict=True):
            loss = F.multilabel_soft_margin_loss(model(trace), rhythm) / MICRO_BATCHES
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        return total

    return step
