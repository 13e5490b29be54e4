"""Fails in its first step: the shapes do not match."""

import torch
from torch import nn


def main():
    model = nn.Linear(16, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 17, device="cuda")).sum()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
