"""The model is compiled before it is trained."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 2048)
        self.second = nn.Linear(2048, 2048)
        self.last = nn.Linear(2048, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.last(x)


def main():
    device = "cuda"
    model = torch.compile(Net().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(65536, 64, device=device)
    y = torch.randint(10, (65536,), device=device)
    for _ in range(10):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
