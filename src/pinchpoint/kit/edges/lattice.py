"""Lattice: a regular grid of tokens in a box, told by counts and corners."""

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
    """A regular grid of points: `shape` counts along each axis from `low` to `high`, both ends included.

    An axis with a single plane has it at `low`.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("shape", "low", "high"):
            if not isinstance(getattr(self, name), Sequence):
                raise BadInput(
                    f"a lattice of {name} {getattr(self, name)!r}",
                    hint=f"give a number for each axis: {name}=(...)",
                )
        if not len(self.shape) == len(self.low) == len(self.high) or not self.shape:
            raise BadInput(
                f"a lattice of {len(self.shape)} counts, {len(self.low)} low ends and {len(self.high)} high ends",
                hint="give one count, one low and one high end for each axis",
            )
        if any(size < 1 or size != int(size) for size in self.shape):
            raise BadInput(f"a lattice of shape {self.shape}", hint="each axis has one plane or more")
        for axis, (size, low, high) in enumerate(zip(self.shape, self.low, self.high, strict=True)):
            if not (math.isfinite(low) and math.isfinite(high)) or high < low or (size > 1 and high == low):
                raise BadInput(
                    f"a lattice whose axis {axis} goes from {low:g} to {high:g}",
                    hint="give finite ends with low below high; they may be equal on an axis with a single plane",
                )
        if self.count > INT32_MOST:
            raise BadInput(
                f"a lattice of {self.count:,} points",
                hint=f"points are numbered in 32 bits: at most {INT32_MOST:,}",
            )

    def axes(self, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> list[Tensor]:
        """The coordinates along each axis: made in float64 on the CPU, so that every device has the same."""
        ends = zip(self.low, self.high, self.shape, strict=True)
        return [
            torch.linspace(low, high, count, dtype=torch.float64).to(dtype).to(device)
            for low, high, count in ends
        ]

    def points(self, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Tensor:
        """(T, d), the last axis running fastest."""
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
        """Half the diagonal of a cell: at this radius every point among the planes has a token."""
        return (
            math.hypot(*(step for step, size in zip(self.spacing, self.shape, strict=True) if size > 1)) / 2
        )


def require_lattice(lattice: object) -> None:
    if not isinstance(lattice, Lattice):
        raise BadInput(
            f"a lattice that is {lattice!r}",
            hint="give Lattice(shape, low, high): counts and corners of its box",
        )
