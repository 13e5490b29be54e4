"""Functions of the distance: the soft distance, the envelope, the radial networks and a table of what they give.

Letters: N pairs, G Gaussians, H hidden, L networks side by side, C channels of each. Everything is a function of the squared
distance alone, smooth at zero: s = sqrt(r^2 + a^2) with the softening a. The envelope and its first two derivatives are zero
at the cutoff; beyond it every channel is exactly zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.workloads.density.config import DensityConfig

SILU_GAIN = 1.6791767923989418  # 1 / root of the mean square of SiLU over a normal variable
_OVERLAP = 1.12  # root of the sum of the squares of all Gaussians at any place, for this spacing


def soft_distance(vectors: Tensor, config: DensityConfig) -> tuple[Tensor, Tensor]:
    """vectors: (3, N) -> r^2 and s = sqrt(r^2 + a^2), each (N,)."""
    squared = vectors.square().sum(0)
    return squared, (squared + config.softening_a**2).sqrt()


def envelope(squared: Tensor, cutoff_a: float) -> Tensor:
    """squared: r^2 (N,) -> 1 at the nucleus, falling by r^6 at first, 0 with two derivatives at the cutoff and beyond."""
    y = (squared / cutoff_a**2).clamp(max=1.0)
    return 1 - y**3 * (10 - 15 * y + 6 * y * y)


def activate(x: Tensor) -> Tensor:
    """SiLU that keeps a normal variable's mean square."""
    return functional.silu(x) * SILU_GAIN


class RadialNetworks(nn.Module):
    """L networks G -> H -> C of the distance, times the envelope."""

    def __init__(self, config: DensityConfig, networks: int, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.channels = channels
        self.inner = nn.Parameter(torch.randn(networks, config.hidden, config.gaussians, generator=generator))
        outer = torch.randn(networks, config.hidden, channels, generator=generator) / math.sqrt(config.hidden)
        self.outer = nn.Parameter(outer)

    def forward(self, squared: Tensor, soft: Tensor) -> Tensor:
        """squared and soft: (N,) -> (L, N, C)."""
        return hidden_layer(self.inner, squared, soft, self.config).transpose(1, 2) @ self.outer


def hidden_layer(inner: Tensor, squared: Tensor, soft: Tensor, config: DensityConfig) -> Tensor:
    """inner: (L, H, G); squared and soft: (N,) -> (L, H, N), the envelope in it."""
    networks, width, gaussians = inner.shape
    low, high = soft_range(config)
    centres = torch.linspace(low, high, gaussians, dtype=soft.dtype, device=soft.device)
    step = (high - low) / max(gaussians - 1, 1)
    basis = torch.exp(-((soft / step - centres[:, None] / step).square())) / _OVERLAP
    hidden = activate(inner.reshape(networks * width, gaussians) @ basis) * envelope(squared, config.cutoff_a)
    return hidden.view(networks, width, len(soft))


class RadialTable(nn.Module):
    """What L networks give, at evenly spaced soft distances, read by linear interpolation. For inference.

    widths: of the groups of channels C is cut into; each has its own table (knots + 1, L * width), so that the channels of
    a group lie side by side.
    """

    def __init__(self, networks: RadialNetworks, widths: list[int], knots: int) -> None:
        super().__init__()
        if knots < 2:
            raise BadInput(f"a table of {knots} knots", mend="give at least 2; 4,096 leaves an error of some 1e-6")
        self.knots = knots
        self.low, high = soft_range(networks.config)
        self.step = (high - self.low) / knots
        weights = networks.outer.detach()
        soft = torch.linspace(self.low, high, knots + 1, dtype=torch.float64, device=weights.device)
        squared = soft.square() - networks.config.softening_a**2
        with torch.no_grad():
            found = networks(squared.to(weights.dtype), soft.to(weights.dtype))
        found[:, -1] = 0.0  # the envelope's own zero, free of rounding
        for at, part in enumerate(found.split(widths, dim=2)):
            self.register_buffer(f"table{at}", part.transpose(0, 1).reshape(knots + 1, -1).contiguous(), persistent=False)

    def places(self, soft: Tensor) -> tuple[Tensor, Tensor]:
        """soft: (N,) -> rows (N, 2) of the table and their weights (N, 2)."""
        place = ((soft - self.low) / self.step).clamp(0, self.knots)
        row = place.long().clamp(max=self.knots - 1)
        right = place - row
        return torch.stack((row, row + 1), dim=1), torch.stack((1 - right, right), dim=1)

    def forward(self, group: int, rows: Tensor, weights: Tensor) -> Tensor:
        """(N, L * width): both rows are read, weighted and added in one pass."""
        return functional.embedding_bag(rows, self.get_buffer(f"table{group}"), per_sample_weights=weights, mode="sum")


def soft_range(config: DensityConfig) -> tuple[float, float]:
    """The soft distance at the nucleus and at the cutoff."""
    return config.softening_a, math.hypot(config.cutoff_a, config.softening_a)
