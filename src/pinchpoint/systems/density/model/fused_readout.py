"""The network of a probe after its sums over neighbours, with one Triton kernel between matrix products.

Letters as in `probe_network`. torch would launch about ten kernels between two products, each of which reads
and writes the states of all probes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.kit.edges.edge_ops import is_fake, on_device
from pinchpoint.systems.density.model.atom_network import ANGLE_GAIN
from pinchpoint.systems.density.model.harmonics import in_full
from pinchpoint.systems.density.model.probe_network import Probes
from pinchpoint.systems.density.model.radial import SILU_GAIN


class FusedReadout(nn.Module):
    """Maps the sums of probes to their outputs.

    The gain of an activation is multiplied into the matrix that follows it. down: (L, C, columns), with the
    weights of the angle in the column after those of the C_0 states, and zeros up to a multiple of four.
    """

    down: Tensor
    angle: Tensor
    keep: Tensor
    head_in: Tensor
    head_bias: Tensor
    readout: Tensor
    head_out: Tensor

    def __init__(self, probes: Probes) -> None:
        super().__init__()
        self.scalars = probes.config.channels(0)
        down = torch.cat([probes.down, ANGLE_GAIN * probes.turn[:, :, None]], dim=2)
        matrices = {
            "down": functional.pad(down, (0, -down.shape[2] % 4)),
            "angle": probes.angle,
            "keep": SILU_GAIN * probes.keep,
            "head_in": SILU_GAIN * probes.head_in,
            "head_bias": probes.head_bias,
            "readout": SILU_GAIN * probes.readout,
            "head_out": SILU_GAIN * probes.head_out,
        }
        for name, value in matrices.items():
            # Buffers, so that they move with the model.
            self.register_buffer(name, value.detach().clone(), persistent=False)

    def forward(self, sums: Tensor) -> Tensor:
        """Return the outputs (P, outputs) without the prior. sums: (P, L, C) float32."""
        probes, layers, _ = sums.shape
        out = sums.new_empty(probes, self.readout.shape[1])
        states = sums.new_empty(probes, layers * self.scalars)
        with in_full(sums), on_device(sums):
            mapped, kept = sums.transpose(0, 1) @ self.down, None
            for layer in range(layers):
                if layer:
                    before = states[:, (layer - 1) * self.scalars : layer * self.scalars]
                    kept = before @ self.keep[layer - 1]
                self._write_state(layer, mapped[layer], kept, states)
            self._write_outputs(states, states @ self.head_in, out)
        return out

    def _write_state(self, layer: int, mapped: Tensor, kept: Tensor | None, states: Tensor) -> None:
        if not is_fake(states) and len(states):
            from pinchpoint.systems.density.model import fused_readout_triton as kernels

            kernels.write_state(mapped, kept, self.angle, states, layer, self.scalars)

    def _write_outputs(self, states: Tensor, hidden: Tensor, out: Tensor) -> None:
        if not is_fake(states) and len(states):
            from pinchpoint.systems.density.model import fused_readout_triton as kernels

            kernels.write_outputs(states, hidden, self.head_bias, self.readout, self.head_out, out)
