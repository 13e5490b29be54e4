"""A regular grid of tokens in a box, defined by counts and corners."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edges import INT32_MOST


@dataclass(frozen=True)
class Lattice:
    """A regular grid with `shape` points along each axis from `low` to `high`, both ends included.

    If an axis has a single plane, the plane is at `low`.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("shape", "low", "high"):
            if not isinstance(getattr(self, name), Sequence):
                raise BadInput(
                    f"The lattice's {name} is {getattr(self, name)!r}, not a sequence.",
                    hint=f"Give a number for each axis: {name}=(...).",
                )
        if not len(self.shape) == len(self.low) == len(self.high) or not self.shape:
            raise BadInput(
                f"The lattice has {len(self.shape)} counts, {len(self.low)} low ends and "
                f"{len(self.high)} high ends; each axis needs one of each.",
                hint="Give one count, one low end and one high end for each axis.",
            )
        if any(size < 1 or size != int(size) for size in self.shape):
            raise BadInput(
                f"The lattice has shape {self.shape}; each axis needs at least one plane, in whole numbers.",
                hint="Give counts such as shape=(16, 16, 16).",
            )
        for axis, (size, low, high) in enumerate(zip(self.shape, self.low, self.high, strict=True)):
            if not (math.isfinite(low) and math.isfinite(high)) or high < low or (size > 1 and high == low):
                raise BadInput(
                    f"Axis {axis} of the lattice goes from {low:g} to {high:g}.",
                    hint="Give finite ends with low below high; they may be equal if the axis has one plane.",
                )
        if self.count > INT32_MOST:
            raise BadInput(
                f"The lattice has {self.count:,} points; points are numbered in 32 bits.",
                hint=f"Give a shape with at most {INT32_MOST:,} points.",
            )

    def axes(self, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> list[Tensor]:
        """The coordinates along each axis, computed in float64 on the CPU: the same for every device."""
        ends = zip(self.low, self.high, self.shape, strict=True)
        return [
            torch.linspace(low, high, count, dtype=torch.float64).to(dtype).to(device)
            for low, high, count in ends
        ]

    def points(self, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Tensor:
        """All points, (T, d), with the last axis varying fastest."""
        axes = self.axes(dtype=dtype, device=device)
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(self.shape))

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def spacing(self) -> tuple[float, ...]:
        return tuple(
            (high - low) / max(size - 1, 1)
            for low, high, size in zip(self.low, self.high, self.shape, strict=True)
        )

    @property
    def half_diagonal(self) -> float:
        """Half the diagonal of a cell: at this radius every point inside the lattice has a token."""
        return (
            math.hypot(*(step for step, size in zip(self.spacing, self.shape, strict=True) if size > 1)) / 2
        )


def require_lattice(lattice: object) -> None:
    if not isinstance(lattice, Lattice):
        raise BadInput(
            f"The lattice is {lattice!r}, not a Lattice.",
            hint="Give Lattice(shape, low, high): counts and corners of its box.",
        )
