"""Label the 256 points of each cloud: DataLoader with workers, pinned copies, a checkpoint per epoch."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", default="model.pt")
    args = parser.parse_args()

    clouds = 4 * args.batch_size
    data = TensorDataset(torch.randn(clouds, 256, 64), torch.randint(10, (clouds, 256)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=2, pin_memory=True)
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    done = 0
    while done < args.steps:
        for x, y in loader:
            x = x.cuda(non_blocking=True)
            y = y.cuda(non_blocking=True)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 10 == 0:
                print(f"step {done}: loss {loss.item():.3f}")
            if done == args.steps:
                break
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint)


if __name__ == "__main__":
    main()
