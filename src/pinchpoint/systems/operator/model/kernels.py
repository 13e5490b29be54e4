"""Edge transforms at several radii, their initial weights, and the units of the network.

P points, L tokens, C channels, S scales. Edge MLPs are plain sequences of Linear and GELU.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.kit import Edges, edge_transform
from pinchpoint.kit.edges.transform import Memory, Transform, Weights
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import ball_shares, lattice_of

Chunk = int | Literal["auto"]


def mlp_of(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these widths with GELU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.GELU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def initialise(mlp: nn.Sequential) -> None:
    """Set initial weights that preserve signal strength; torch's default loses half at every layer."""
    for number, layer in enumerate(mlp):
        if isinstance(layer, nn.Linear):
            # GELU passes about 0.43 of the mean square of its inputs.
            nn.init.normal_(layer.weight, std=(layer.in_features * (0.43 if number else 1)) ** -0.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)


class Scaling(nn.Module):
    """Units of the network: half the box's longest side for places, and scales for features and targets.

    All are derived from the configuration, so they are not saved; they are buffers, so that no step has to
    copy them to the device.
    """

    tokens: Tensor  # (L, 3)
    centre: Tensor  # (3,)
    feature_shift: Tensor  # (K,)
    feature_scale: Tensor
    target_shift: Tensor  # (T,)
    target_scale: Tensor

    def __init__(self, config: OperatorConfig) -> None:
        super().__init__()
        self.unit, self.measure = config.half_length, config.measure
        buffers = {
            "centre": [(a + b) / 2 for a, b in zip(config.low, config.high, strict=True)],
            "feature_shift": config.feature_shift or [0.0] * config.in_features,
            "feature_scale": config.feature_scale or [1.0] * config.in_features,
            "target_shift": config.target_shift or [0.0] * config.out_features,
            "target_scale": config.target_scale or [1.0] * config.out_features,
        }
        for name, values in buffers.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)
        self.register_buffer("tokens", self.places(lattice_of(config).points()), persistent=False)

    def places(self, points: Tensor) -> Tensor:
        return (points - self.centre) / self.unit

    def areas(self, areas: Tensor) -> Tensor:
        return areas / self.unit**self.measure

    def features(self, features: Tensor) -> Tensor:
        return (features - self.feature_shift) / self.feature_scale

    def targets(self, values: Tensor) -> Tensor:
        return values * self.target_scale + self.target_shift


class Cosine(nn.Module):
    """GAOT-3D's score of an edge: the cosine between absolute places. (e, 2d) = [y, x] to (e, 1)."""

    def forward(self, both: Tensor) -> Tensor:
        y, x = both.chunk(2, dim=1)
        return functional.cosine_similarity(y, x, dim=1)[:, None]


class MultiScale(nn.Module):
    """One edge transform per radius, added with softmax weights per channel: (S sources, C) to (Q, C)."""

    def __init__(self, config: OperatorConfig, *, weights: Weights, kernel_only: bool = False) -> None:
        super().__init__()
        self.transform: Transform = "linear_kernelonly" if kernel_only else config.transform
        self.weights: Weights = weights
        self.absolute = config.compat and weights == "attention"
        self.measure, self.dimension = config.measure, config.dimension
        self.radii = [radius / config.half_length for radius in config.radii]
        reads = (4 if self.absolute else 2) * self.dimension + (
            config.channels if self.transform.startswith("nonlinear") else 0
        )
        self.kernels = nn.ModuleList(mlp_of((reads, *config.mlp, config.channels)) for _ in self.radii)
        scores = (
            [Cosine() if self.absolute else mlp_of((self.dimension, 16, 1)) for _ in self.radii]
            if weights == "attention"
            else []
        )
        self.scores = nn.ModuleList(scores)
        self.mix = (
            nn.Parameter(torch.zeros(len(self.radii), config.channels)) if len(self.radii) > 1 else None
        )
        if not config.compat:
            self._initialise(multiplies=not self.transform.endswith("kernelonly"))

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        f: Tensor | None,
        edges: tuple[Edges, ...],
        *,
        areas: Tensor | None = None,
        memory: Memory,
        chunk: Chunk,
    ) -> Tensor:
        """x: (Q, 3), y: (S, 3), f: (S, C), areas: (S,), all in the units of the network."""
        if self.dimension < 3:
            x, y = x[:, : self.dimension].contiguous(), y[:, : self.dimension].contiguous()
        if self.absolute:
            # The kit passes the offset y - x to the score; padded with zeros, both places pass through
            # unchanged: [y, 0] - [0, -x] = [y, x].
            x, y = torch.cat([torch.zeros_like(x), -x], dim=1), torch.cat([y, torch.zeros_like(y)], dim=1)
        parts = []
        for number, (radius, graph) in enumerate(zip(self.radii, edges, strict=True)):
            part = edge_transform(
                self.kernels[number],
                x,
                y,
                f,
                graph,
                memory=memory,
                chunk=chunk,
                transform=self.transform,
                weights=self.weights,
                quadrature=ball_shares(areas, radius, self.measure) if self.weights == "quadrature" else None,
                attention=self.scores[number] if self.weights == "attention" else None,
            )
            parts.append(part)
        if self.mix is None:
            return parts[0]
        first, *others = zip(parts, self.mix.softmax(0), strict=True)
        whole = first[0] * first[1]
        for part, share in others:  # one after the other: stacking would store all scales twice
            whole = torch.addcmul(whole, part, share)
        return whole

    @torch.no_grad()
    def _initialise(self, *, multiplies: bool) -> None:
        """Set initial weights for offsets in units of the radius; in units of the box, all look alike."""
        for number, radius in enumerate(self.radii):
            kernel = self.kernels[number]
            assert isinstance(kernel, nn.Sequential)
            initialise(kernel)
            first, last = kernel[0], kernel[-1]
            assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
            axes = self.dimension
            offset = torch.randn(first.out_features, axes) / axes**0.5
            place = torch.randn(first.out_features, axes) / axes**0.5 / 2
            first.weight[:, :axes] = offset / radius + place
            first.weight[:, axes : 2 * axes] = place - offset / radius
            nn.init.uniform_(first.bias, -1, 1)
            if multiplies:
                # The kernel is initially about one, so f passes through from the first step.
                nn.init.ones_(last.bias)
            for score in self.scores[number : number + 1]:
                assert isinstance(score, nn.Sequential)
                initialise(score)
                reads = score[0]
                assert isinstance(reads, nn.Linear)
                nn.init.normal_(reads.weight, std=1 / (axes**0.5 * radius))
