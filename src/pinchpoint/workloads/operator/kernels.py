"""Edge transforms at several radii, their first weights, and the units a network reads.

P points, L tokens, C channels, S scales. Edge MLPs are plain sequences of Linear and GELU.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.kit import Edges, edge_transform
from pinchpoint.kit.transform import Memory, Transform, Weights
from pinchpoint.workloads.operator.config import OperatorConfig
from pinchpoint.workloads.operator.graph import disc_shares, lattice_of

Chunk = int | Literal["auto"]


def mlp_of(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these widths with GELU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class Scaling(nn.Module):
    """Units: places and radii in halves of the box's longest side, features and targets as the configuration says."""

    tokens: Tensor  # (L, 3)

    def __init__(self, config: OperatorConfig) -> None:
        super().__init__()
        self.config = config
        self.centre = [(a + b) / 2 for a, b in zip(config.low, config.high, strict=True)]
        self.register_buffer("tokens", self.places(lattice_of(config).points(dtype=torch.float64)).float(), persistent=False)

    def places(self, points: Tensor) -> Tensor:
        return (points - points.new_tensor(self.centre)) / self.config.half_length

    def areas(self, areas: Tensor) -> Tensor:
        return areas / self.config.half_length**2

    def features(self, features: Tensor) -> Tensor:
        if not self.config.feature_shift:
            return features
        return (features - features.new_tensor(self.config.feature_shift)) / features.new_tensor(self.config.feature_scale)

    def targets(self, values: Tensor) -> Tensor:
        if not self.config.target_shift:
            return values
        return values * values.new_tensor(self.config.target_scale) + values.new_tensor(self.config.target_shift)


class Cosine(nn.Module):
    """The original's score of an edge: the cosine between absolute places. (e, 6) = [y, x] to (e, 1)."""

    def forward(self, both: Tensor) -> Tensor:
        y, x = both.chunk(2, dim=1)
        return functional.cosine_similarity(y, x, dim=1)[:, None]


class MultiScale(nn.Module):
    """One edge transform for each radius, added with softmax weights for each channel: (S sources, C) to (Q, C)."""

    def __init__(self, config: OperatorConfig, *, weights: Weights, kernel_only: bool = False) -> None:
        super().__init__()
        self.transform: Transform = "linear_kernelonly" if kernel_only else config.transform
        self.weights: Weights = weights
        self.absolute = config.compat and weights == "attention"
        self.radii = [radius / config.half_length for radius in config.radii]
        reads = (12 if self.absolute else 6) + (config.channels if self.transform.startswith("nonlinear") else 0)
        self.kernels = nn.ModuleList(mlp_of((reads, *config.mlp, config.channels)) for _ in self.radii)
        scores = [Cosine() if self.absolute else mlp_of((3, 16, 1)) for _ in self.radii] if weights == "attention" else []
        self.scores = nn.ModuleList(scores)
        self.mix = nn.Parameter(torch.zeros(len(self.radii), config.channels))
        if not config.compat:
            self._begin(multiplies=not self.transform.endswith("kernelonly"))

    def forward(
        self, x: Tensor, y: Tensor, f: Tensor | None, edges: tuple[Edges, ...], *, areas: Tensor | None = None,
        memory: Memory, chunk: Chunk,
    ) -> Tensor:  # fmt: skip
        """x: (Q, 3), y: (S, 3), f: (S, C), areas: (S,), all in the units of the box."""
        if self.absolute:
            # The kit scores an offset; laid side by side the places come through as they are: [y, 0] - [0, -x] = [y, x].
            x, y = torch.cat([torch.zeros_like(x), -x], dim=1), torch.cat([y, torch.zeros_like(y)], dim=1)
        mix = self.mix.softmax(0)
        whole = None
        for number, (radius, graph) in enumerate(zip(self.radii, edges, strict=True)):
            part = edge_transform(
                self.kernels[number], x, y, f, graph, memory=memory, chunk=chunk, transform=self.transform, weights=self.weights,
                quadrature=disc_shares(areas, radius) if self.weights == "quadrature" else None,
                attention=self.scores[number] if self.weights == "attention" else None,
            )  # fmt: skip
            whole = part * mix[number] if whole is None else whole + part * mix[number]
        assert whole is not None
        return whole

    @torch.no_grad()
    def _begin(self, *, multiplies: bool) -> None:
        """First weights that see the offset in units of the radius; in those of the box every edge would look alike."""
        for number, radius in enumerate(self.radii):
            kernel = self.kernels[number]
            assert isinstance(kernel, nn.Sequential)
            first, last = kernel[0], kernel[-1]
            assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
            offset = torch.randn(first.out_features, 3) / 3**0.5
            place = torch.randn(first.out_features, 3) / 3**0.5 / 2
            first.weight[:, :3] = offset / radius + place
            first.weight[:, 3:6] = place - offset / radius
            nn.init.uniform_(first.bias, -1, 1)
            if multiplies:
                nn.init.ones_(last.bias)  # a kernel of about one: what f carries comes through from the first step
            for score in self.scores[number : number + 1]:
                assert isinstance(score, nn.Sequential)
                reads = score[0]
                assert isinstance(reads, nn.Linear)
                nn.init.normal_(reads.weight, std=1 / (3**0.5 * radius))
