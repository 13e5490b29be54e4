"""LocalNetwork: a second network that corrects the density at each probe from what the first one computed
there.

It reads only scalars of the probe, so the corrected density turns with the structure; it has no neighbours of
its own, so it costs little. It may be trained with the first network, or alone on top of a trained one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.radial import activate

SMALL = 0.1  # e / A^3: the density enters linearly well below it and by its logarithm well above it


class LocalNetwork(nn.Module):
    """Two hidden layers of `config.local` units that map the scalars of a probe to a correction."""

    def __init__(self, config: DensityConfig, generator: torch.Generator) -> None:
        super().__init__()
        width, inputs = config.local, config.interactions * config.channels(0) + config.outputs

        def normal(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns, generator=generator) / math.sqrt(rows))

        self.inner, self.middle, self.outer = (
            normal(inputs, width),
            normal(width, width),
            normal(width, config.outputs),
        )
        self.inner_bias, self.middle_bias = (nn.Parameter(torch.zeros(width)) for _ in range(2))

    def forward(self, states: list[Tensor], density: Tensor) -> Tensor:
        """Return the correction (P, outputs). It is zero where the inputs are: empty space stays empty.

        states: (P, C_0) of each interaction; density: (P, outputs) of the first network, with the prior.
        """
        inputs = torch.cat([*states, torch.asinh(density / SMALL)], dim=1)
        # Both have one shape: the vector and scalar code of an activation may differ in the last bit.
        return (self._hidden(inputs) - self._hidden(torch.zeros_like(inputs))) @ self.outer

    def _hidden(self, inputs: Tensor) -> Tensor:
        return activate(activate(inputs @ self.inner + self.inner_bias) @ self.middle + self.middle_bias)
