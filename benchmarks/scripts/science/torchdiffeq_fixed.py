"""Train an ODE block of convolutions with torchdiffeq's fixed-step solver, back-propagating through it."""

import torch
import torch.nn as nn
from torchdiffeq import odeint


class ODEFunc(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, dim), nn.GroupNorm(32, dim)
        self.conv1 = nn.Conv2d(dim + 1, dim, 3, padding=1)
        self.conv2 = nn.Conv2d(dim + 1, dim, 3, padding=1)

    def forward(self, t, x):
        for norm, conv in ((self.norm1, self.conv1), (self.norm2, self.conv2)):
            x = norm(x).relu()
            x = conv(torch.cat([torch.ones_like(x[:, :1]) * t, x], dim=1))
        return x


class ODEBlock(nn.Module):
    def __init__(self, func):
        super().__init__()
        self.func = func
        self.register_buffer("times", torch.tensor([0.0, 1.0]))

    def forward(self, x):
        return odeint(self.func, x, self.times, method="rk4", options={"step_size": 0.25})[1]


model = nn.Sequential(
    nn.Conv2d(3, 64, 3, 1),
    nn.GroupNorm(32, 64),
    nn.ReLU(),
    nn.Conv2d(64, 64, 4, 2, 1),
    ODEBlock(ODEFunc(64)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    x, y = torch.rand(256, 3, 32, 32).to("cuda"), torch.randint(0, 10, (256,)).to("cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")
