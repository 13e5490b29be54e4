"""Convolutions with batch norm in channels-last layout that classify galaxies; AdamW, one-cycle schedule."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class GalaxyNet(nn.Module):
    def __init__(self, kinds: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 40, kernel_size=5, stride=2, padding=2)
        self.bn1 = nn.BatchNorm2d(40)
        self.conv2 = nn.Conv2d(40, 80, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm2d(80)
        self.conv3 = nn.Conv2d(80, 120, kernel_size=3, padding=1)
        self.bn3 = nn.BatchNorm2d(120)
        self.conv4 = nn.Conv2d(120, 176, kernel_size=3, padding=1)
        self.bn4 = nn.BatchNorm2d(176)
        self.drop = nn.Dropout(0.3)
        self.fc1 = nn.Linear(176 * 4 * 4, 256)
        self.fc2 = nn.Linear(256, kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.elu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.elu(self.bn2(self.conv2(x))), 2)
        x = F.max_pool2d(F.elu(self.bn3(self.conv3(x))), 2)
        x = F.adaptive_avg_pool2d(F.elu(self.bn4(self.conv4(x))), 4)
        x = self.drop(F.elu(self.fc1(x.flatten(1))))
        return self.fc2(x)


def galaxies(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(3)
    model = GalaxyNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=1000)
    images = torch.rand(size, 3, 96, 96, device=device).contiguous(memory_format=torch.channels_last)
    kinds = torch.randint(0, 10, (size,), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), kinds)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step
