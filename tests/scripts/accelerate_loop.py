"""A loop on Hugging Face accelerate: it chooses the device."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
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
    accelerator = Accelerator()
    data = TensorDataset(torch.randn(4 * 256, 256, 64), torch.randint(10, (4 * 256, 256)))
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=256)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(5):
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    accelerator.save_state("accelerate_state")


if __name__ == "__main__":
    main()
