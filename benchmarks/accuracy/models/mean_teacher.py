"""An MLP-Mixer taught by the moving average of itself: accumulation, clipping, EMA."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.within = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width=320, depth=6, classes=50):
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=8, stride=8)
        self.blocks = nn.Sequential(*[MixerBlock(144, width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


def mean_teacher(size, device):
    """size: images of 96 x 96 in one of the three parts of a batch."""
    torch.manual_seed(8)
    parts = 3
    student = Mixer().to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.05)
    images = torch.rand(parts * size, 3, 96, 96)
    labels = torch.randint(0, 50, (parts * size,))

    def step():
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(images.chunk(parts), labels.chunk(parts), strict=True):
            x, y = x.to(device), y.to(device)
            logits = student(x + 0.1 * torch.randn_like(x))
            with torch.no_grad():
                belief = teacher(x).softmax(dim=-1)
            loss = F.cross_entropy(logits, y) + F.mse_loss(logits.softmax(dim=-1), belief)
            (loss / parts).backward()
            total += loss.item() / parts
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        return total

    return step
