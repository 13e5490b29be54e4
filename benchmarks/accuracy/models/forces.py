"""A graph network whose loss is on energies and on forces, so that training differentiates twice."""

import torch
import torch.nn.functional as F
from torch import nn


class Interaction(nn.Module):
    def __init__(self, width: int, basis: int):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width + basis, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h, edges, radial):
        i, j = edges
        m = self.message(torch.cat([h[i], h[j], radial], dim=-1))
        total = torch.zeros_like(h).index_add(0, i, m)
        return h + self.update(torch.cat([h, total], dim=-1))


class Potential(nn.Module):
    def __init__(self, width: int = 64, basis: int = 16, depth: int = 3):
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.register_buffer("centres", torch.linspace(0, 5, basis))
        self.layers = nn.ModuleList(Interaction(width, basis) for _ in range(depth))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, kinds, positions, edges):
        i, j = edges
        distance = (positions[i] - positions[j]).norm(dim=-1, keepdim=True)
        radial = torch.exp(-((distance - self.centres) ** 2))
        h = self.embed(kinds)
        for layer in self.layers:
            h = layer(h, edges, radial)
        return self.readout(h).sum()


def forces(size: int, device: str):
    torch.manual_seed(0)
    atoms = max(2, size // 20)
    model = Potential().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kinds = torch.randint(10, (atoms,), device=device)
    positions = 10 * torch.rand(atoms, 3, device=device)
    source = torch.randint(atoms, (size,), device=device)
    edges = torch.stack([source, (source + torch.randint(1, atoms, (size,), device=device)) % atoms])
    true_energy = torch.zeros((), device=device)
    true_forces = torch.randn(atoms, 3, device=device)

    def step():
        optimizer.zero_grad()
        x = positions.clone().requires_grad_(True)
        energy = model(kinds, x, edges)
        force = -torch.autograd.grad(energy, x, create_graph=True)[0]
        loss = F.mse_loss(force, true_forces) + 1e-3 * (energy - true_energy).abs() / atoms
        loss.backward()
        optimizer.step()

    return step
