"""A bidirectional LSTM that labels every frame of speech, over a convolution in time; Adamax."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Labeller(nn.Module):
    def __init__(self, features: int = 40, hidden: int = 272, phonemes: int = 61) -> None:
        super().__init__()
        self.front = nn.Conv1d(features, 160, kernel_size=5, padding=2)
        self.recurrent = nn.LSTM(160, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * hidden)
        self.head = nn.Linear(2 * hidden, phonemes)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.front(sound.transpose(1, 2))).transpose(1, 2)
        x, _ = self.recurrent(x)
        return self.head(self.norm(x))


def phonemes(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(19)
    model = Labeller().to(device)
    optimizer = torch.optim.Adamax(model.parameters(), lr=2e-3)
    sound = torch.randn(size, 240, 40, device=device)
    labels = torch.randint(0, 61, (size, 240), device=device)
    criterion = nn.CrossEntropyLoss()

    def step() -> torch.Tensor:
        scores = model(sound)
        loss = criterion(scores.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
