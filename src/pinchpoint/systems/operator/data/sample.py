"""A sample: one body as an input of the operator, from a dataset or a mesh.

Letters: P points of the body (centroids of its panels), K input features, T targets.
All tensors are float32 on one device; the solvers keep their double-precision values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput


@dataclass(frozen=True)
class Sample:
    """One body: its points, the features known there, and the target to predict."""

    name: str
    points: Tensor  # (P, 3) in metres
    features: Tensor  # (P, K) inputs of the operator at each point
    target: Tensor  # (P, T) true values; T = 0 if they are unknown (a user's mesh)
    areas: Tensor  # (P,) quadrature weights

    def to(self, device: torch.device | str) -> Sample:
        return self.apply(lambda values: move(values, device))

    def apply(self, function: Callable[[Tensor], Tensor]) -> Sample:
        """The same body with `function`, which moves or pins a tensor, applied to all tensors."""
        return replace(
            self,
            **{name: function(getattr(self, name)) for name in ("points", "features", "target", "areas")},
        )


def move(values: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on the device. Copies from pinned memory to a GPU do not wait; all other copies do."""
    return values.to(device, non_blocking=torch.device(device).type == "cuda")


def check_sample(sample: Sample) -> Sample:
    """The sample itself. Raises `BadInput` if its shapes disagree or a number is not finite."""
    count = len(sample.points)
    if count == 0:
        raise BadInput(f"{sample.name} has no points.", hint="Give a body with at least one face.")
    for name in ("points", "features", "target", "areas"):
        values: Tensor = getattr(sample, name)
        if len(values) != count:
            raise BadInput(
                f"{sample.name} has {count:,} points, but {len(values):,} rows of {name}.",
                hint="Create the body again.",
            )
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            raise BadInput(
                f"{bad:,} numbers in {name} of {sample.name} are NaN or infinite.",
                hint="Repair the body, or create it again.",
            )
    return sample
