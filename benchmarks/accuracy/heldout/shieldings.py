"""An e3nn network for the shielding tensors of atoms: uvu tensor products, norm activations, batch norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import BatchNorm, FullyConnectedNet, NormActivation
from torch import nn

DEGREE = 12


class Interaction(nn.Module):
    """Weighted products of neighbours and spherical harmonics, summed at the atoms, plus a self term."""

    def __init__(self, before: o3.Irreps, harmonics: o3.Irreps, after: o3.Irreps, radial: int) -> None:
        super().__init__()
        kept: list[tuple[int, o3.Irrep]] = []
        paths = []
        for i, (count, left) in enumerate(before):
            for j, (_, right) in enumerate(harmonics):
                for out in left * right:
                    if out in after:
                        paths.append((i, j, len(kept), "uvu", True))
                        kept.append((count, out))
        middle = o3.Irreps(kept)
        self.linear_in = o3.Linear(before, before)
        self.product = o3.TensorProduct(
            before, harmonics, middle, paths, shared_weights=False, internal_weights=False
        )
        self.radial = FullyConnectedNet([radial, 48, self.product.weight_numel], torch.nn.functional.silu)
        self.linear_out = o3.Linear(middle, after)
        self.own = o3.Linear(before, after)
        self.norm = BatchNorm(after)
        self.activation = NormActivation(after, torch.sigmoid, bias=True)

    def forward(
        self,
        x: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
        harmonics: torch.Tensor,
        radial: torch.Tensor,
    ) -> torch.Tensor:
        message = self.product(self.linear_in(x)[source], harmonics, self.radial(radial))
        total = torch.zeros(x.shape[0], message.shape[1], device=x.device, dtype=x.dtype)
        total = total.index_add(0, target, message) / DEGREE**0.5
        return self.activation(self.norm(self.linear_out(total) + self.own(x)))


class Shielding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        hidden = o3.Irreps("20x0e + 12x1o + 8x2e")
        self.embed = nn.Embedding(9, 24)
        self.first = Interaction(o3.Irreps("24x0e"), self.harmonics, hidden, radial=10)
        self.second = Interaction(hidden, self.harmonics, hidden, radial=10)
        self.readout = o3.Linear(hidden, "0e + 2e")

    def forward(
        self, kinds: torch.Tensor, positions: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        vectors = positions[source] - positions[target]
        harmonics = o3.spherical_harmonics(self.harmonics, vectors, normalize=True, normalization="component")
        radial = (
            soft_one_hot_linspace(vectors.norm(dim=1), 0.0, 6.0, 10, basis="smooth_finite", cutoff=True)
            * 10**0.5
        )
        x = self.first(self.embed(kinds), source, target, harmonics, radial)
        return self.readout(self.second(x, source, target, harmonics, radial))


def shieldings(size: int, device: str) -> Callable[[], torch.Tensor]:
    torch.manual_seed(41)
    model = Shielding().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    kinds = torch.randint(0, 9, (size,), device=device)
    positions = 5 * torch.rand(size, 3, device=device)
    target = torch.arange(size, device=device).repeat_interleave(DEGREE)
    offsets = torch.randint(1, size, (size * DEGREE,), device=device)
    source = (target + offsets) % size
    truth = torch.randn(size, 6, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(kinds, positions, source, target) - truth).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
