"""Gradient accumulation over four parts, and an average of the weights kept as a deep copy."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

PARTS = 4


def main():
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).to("cuda")
    average = copy.deepcopy(model)
    average.eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(PARTS, 128, 4096).to("cuda")

    for _ in range(20):
        optimizer.zero_grad()
        for part in inputs:
            loss = F.mse_loss(model(part), part) / PARTS
            loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.01)


if __name__ == "__main__":
    main()
