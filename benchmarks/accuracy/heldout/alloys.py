"""A gated graph network for crystals, trained on energies and on forces (double backward)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

ATOMS, NEIGHBOURS, CUTOFF = 20, 14, 5.0


class Bessel(nn.Module):
    frequencies: torch.Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", math.pi * torch.arange(1, count + 1) / CUTOFF)

    def forward(self, r: torch.Tensor) -> torch.Tensor:
        smooth = 0.5 * (torch.cos(math.pi * r / CUTOFF) + 1)
        return smooth * torch.sin(self.frequencies * r) / r


class Convolution(nn.Module):
    def __init__(self, width: int, radial: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width + radial, width)
        self.core = nn.Linear(2 * width + radial, width)
        self.norm = nn.LayerNorm(width)
        self.update = nn.Linear(width, width)

    def forward(
        self, h: torch.Tensor, rbf: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        pair = torch.cat([h[target], h[source], rbf], dim=1)
        message = torch.sigmoid(self.gate(pair)) * F.softplus(self.core(pair))
        total = torch.zeros_like(h).index_add(0, target, message)
        return h + torch.tanh(self.update(self.norm(total)))


class Crystal(nn.Module):
    def __init__(self, width: int = 104, radial: int = 18) -> None:
        super().__init__()
        self.species = nn.Embedding(30, width)
        self.bessel = Bessel(radial)
        self.convolutions = nn.ModuleList(Convolution(width, radial) for _ in range(3))
        self.readout = nn.Sequential(nn.Linear(width, 52), nn.Tanh(), nn.Linear(52, 1))

    def forward(
        self,
        positions: torch.Tensor,
        shifts: torch.Tensor,
        kinds: torch.Tensor,
        edges: torch.Tensor,
        crystals: int,
    ) -> torch.Tensor:
        source, target = edges
        vectors = positions[source] - positions[target] + shifts
        rbf = self.bessel(torch.linalg.norm(vectors, dim=1, keepdim=True))
        h = self.species(kinds)
        for convolution in self.convolutions:
            h = convolution(h, rbf, source, target)
        return self.readout(h).view(crystals, -1).sum(dim=1)


def alloys(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(31)
    model = Crystal().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    atoms = size * ATOMS
    positions = 4 * torch.rand(atoms, 3, device=device)
    kinds = torch.randint(0, 30, (atoms,), device=device)
    target = torch.arange(atoms, device=device).repeat_interleave(NEIGHBOURS)
    source = target // ATOMS * ATOMS + torch.randint(0, ATOMS, (atoms * NEIGHBOURS,), device=device)
    edges = torch.stack([source, target])
    shifts = 1.0 + torch.rand(atoms * NEIGHBOURS, 3, device=device)
    energies = torch.randn(size, device=device)
    forces = torch.randn(atoms, 3, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        moved = positions.clone().requires_grad_(True)
        energy = model(moved, shifts, kinds, edges, size)
        (slope,) = torch.autograd.grad(energy.sum(), moved, create_graph=True)
        loss = F.l1_loss(energy / ATOMS, energies) + 10 * F.huber_loss(-slope, forces)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step
