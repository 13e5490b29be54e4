"""A transformer that writes melodies: causal windowed attention with distances as a float mask, AdamW."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

NOTES, LENGTH, WIDTH, HEADS = 1_283, 320, 432, 6


def distance_mask(length: int, heads: int, window: int) -> torch.Tensor:
    """(1, heads, length, length): slope times distance to the past; -inf outside the window and the past."""
    position = torch.arange(length)
    back = position[:, None] - position[None, :]
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)])
    bias = -slopes[:, None, None] * back
    return bias.masked_fill((back < 0) | (back >= window), float("-inf"))[None]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 3 * WIDTH)
        self.narrow = nn.Linear(3 * WIDTH, WIDTH)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = self.heads(self.query(h)), self.heads(self.key(h)), self.heads(self.value(h))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class Composer(nn.Module):
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(NOTES, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(5))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, NOTES, bias=False)
        self.register_buffer("mask", distance_mask(LENGTH, HEADS, window=128), persistent=False)

    def forward(self, notes: torch.Tensor) -> torch.Tensor:
        x = self.embed(notes)
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(self.norm(x))


def melodies(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(2)
    model = Composer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tunes = torch.randint(0, NOTES, (size, LENGTH + 1), device=device)

    def step() -> torch.Tensor:
        logits = model(tunes[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, NOTES), tunes[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
