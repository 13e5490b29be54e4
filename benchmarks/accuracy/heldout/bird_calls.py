"""Pre-activation residual blocks with squeeze and excitation on spectrograms; momentum SGD."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 8, 1)
        self.up = nn.Conv2d(channels // 8, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = x.mean(dim=(2, 3), keepdim=True)
        return x * torch.sigmoid(self.up(F.relu(self.down(s))))


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.squeeze = Squeeze(after)
        same = before == after and stride == 1
        self.shortcut = None if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        return self.squeeze(out) + shortcut


class CallNet(nn.Module):
    def __init__(self, species: int = 152) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 48, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        before = 48
        for after, stride, count in ((48, 1, 2), (96, 2, 3), (160, 2, 3), (288, 2, 2)):
            for i in range(count):
                blocks.append(Block(before, after, stride if i == 0 else 1))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(before)
        self.head = nn.Linear(before, species)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.blocks(self.stem(x))))
        return self.head(x.amax(dim=(2, 3)))


def bird_calls(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(21)
    model = CallNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    mel = torch.randn(size, 1, 80, 200, device=device)
    present = (torch.rand(size, 152, device=device) < 0.04).float()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(mel), present)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
