"""Everything is made on the GPU because the default device says so."""

import torch
import torch.nn.functional as F
from torch import nn

torch.set_default_device("cuda")


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


net = Net()
optimizer = torch.optim.Adam(net.parameters())
x = torch.randn(65536, 64)
y = torch.randint(10, (65536,))
for _ in range(10):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
