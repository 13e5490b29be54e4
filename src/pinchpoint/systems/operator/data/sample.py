"""Sample: one body as the operator sees it, whatever the data set or mesh it comes from.

Letters: P points of the body (centroids of its panels), K input features, T targets.
Everything is float32 on one device; the double-precision truth stays with whoever made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput


@dataclass(frozen=True)
class Sample:
    """One body: where its points lie, what is known there, and what is asked for."""

    name: str
    points: Tensor  # (P, 3) metres of the data set
    features: Tensor  # (P, K) what the operator reads at a point
    target: Tensor  # (P, T) what it is to say there; T = 0 where nobody knows the truth (a user's mesh)
    areas: Tensor  # (P,) quadrature weights

    def to(self, device: torch.device | str) -> Sample:
        return self.mapped(lambda values: moved(values, device))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Sample:
        """The same body with all tensors changed: moved, or pinned."""
        return replace(
            self, **{name: change(getattr(self, name)) for name in ("points", "features", "target", "areas")}
        )


def moved(values: Tensor, device: torch.device | str) -> Tensor:
    """On the device. To a GPU from pinned memory without waiting; from elsewhere torch waits, and from a GPU it must."""
    return values.to(device, non_blocking=torch.device(device).type == "cuda")


def check_sample(sample: Sample) -> Sample:
    """The sample itself where its shapes agree and every number is finite; else BadInput."""
    count = len(sample.points)
    if count == 0:
        raise BadInput(f"{sample.name} has zero points", hint="give a body with at least one face")
    for name in ("points", "features", "target", "areas"):
        values: Tensor = getattr(sample, name)
        if len(values) != count:
            raise BadInput(
                f"{sample.name} has {count:,} points and {len(values):,} rows of {name}",
                hint="make the body again",
            )
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            raise BadInput(
                f"{bad:,} numbers in {name} of {sample.name} are NaN or infinite",
                hint="make or clean the body again",
            )
    return sample
