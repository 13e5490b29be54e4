"""Fit a neural ODE with torchdiffeq's adaptive solver and the adjoint method, then predict a trajectory."""

import torch
import torch.nn as nn
from torchdiffeq import odeint_adjoint as odeint

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class ODEFunc(nn.Module):
    def __init__(self, dim=64, width=512):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, width), nn.Tanh(), nn.Linear(width, dim))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.01)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)


func = ODEFunc().to(device)
optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
times = torch.linspace(0.0, 1.0, 10).to(device)
for step in range(3):
    optimizer.zero_grad()
    y0, target = torch.randn(16_384, 64).to(device), torch.randn(10, 16_384, 64).to(device)
    prediction = odeint(func, y0, times, method="dopri5")
    loss = (prediction - target).abs().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")

with torch.no_grad():
    print(odeint(func, torch.randn(16_384, 64).to(device), times).shape)
