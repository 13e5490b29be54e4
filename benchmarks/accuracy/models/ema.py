"""An MLP with gradient accumulation, clipping and an exponential moving average of its weights."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

PARTS = 4


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(width, width)
        )

    def forward(self, x):
        return x + self.net(x)


def ema(size: int, device: str):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 1024), *(Residual(1024) for _ in range(12)), nn.Linear(1024, 8)).to(
        device
    )
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    inputs = torch.randn(size, 32, device=device)
    target = torch.randn(size, 8, device=device)

    def step():
        optimizer.zero_grad()
        for x, y in zip(inputs.chunk(PARTS), target.chunk(PARTS), strict=True):
            loss = F.mse_loss(model(x), y) / PARTS
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.mul_(0.999).add_(new, alpha=0.001)

    return step
