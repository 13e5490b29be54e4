"""Only the points a mask keeps go through the network; how many is known when it runs."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 512)
        self.second = nn.Linear(512, 512)
        self.last = nn.Linear(512, 1)

    def forward(self, points):
        h = torch.relu(self.first(points))
        h = torch.relu(self.second(h))
        return self.last(h)


def main():
    torch.manual_seed(0)
    model = Net().to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        points = torch.rand(400_000, 3, device="cuda")
        kept = points[points[:, 0] < 0.25]
        output = model(kept)
        near = torch.nonzero(kept[:, 1] < 0.5).squeeze(-1)
        loss = output[near].pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
