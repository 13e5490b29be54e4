"""A physics-informed network for the heat equation in plain PyTorch: Adam, then L-BFGS."""

import itertools

import torch
import torch.nn as nn

device = torch.device("cuda")
widths = [3] + [256] * 5 + [1]
layers = []
for a, b in itertools.pairwise(widths):
    layers += [nn.Linear(a, b), nn.Tanh()]
net = nn.Sequential(*layers[:-1]).to(device)


def derivative(values, points):
    return torch.autograd.grad(values, points, torch.ones_like(values), create_graph=True)[0]


points = torch.rand(20_000, 3, device=device, requires_grad=True)
edge = torch.rand(4_000, 3, device=device)
start = torch.sin(torch.pi * edge[:, :1])


def loss_function():
    gradient = derivative(net(points), points)
    u_xx = derivative(gradient[:, 0], points)[:, 0]
    u_yy = derivative(gradient[:, 1], points)[:, 1]
    residual = gradient[:, 2] - 0.1 * (u_xx + u_yy)
    return residual.pow(2).mean() + (net(edge) - start).pow(2).mean()


adam = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(3):
    adam.zero_grad()
    loss = loss_function()
    loss.backward()
    adam.step()
    print(f"step {step}: loss {loss.item():.4f}")

lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=4, history_size=10, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = loss_function()
    loss.backward()
    return loss


for _ in range(2):
    print(f"loss {lbfgs.step(closure).item():.4f}")
