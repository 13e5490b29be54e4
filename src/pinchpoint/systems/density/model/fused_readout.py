"""The network of a probe after its sums over neighbours: one Triton kernel for each interaction, and one for
the outputs.

Letters as in `probe_network`. torch would launch about ten kernels between two matrix products, each of which
reads and writes the states of all probes, and would compute the products without tensor cores.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.kit.edges.edge_ops import is_fake, on_device
from pinchpoint.systems.density.model.atom_network import ANGLE_GAIN
from pinchpoint.systems.density.model.probe_network import Probes
from pinchpoint.systems.density.model.radial import SILU_GAIN
from pinchpoint.systems.density.model.tensor_cores import parts_of

_STEP = 32  # rows of a matrix are padded to a multiple of it
_WIDEST = 256  # columns of a matrix: a program has those of all its probes in registers


class FusedReadout(nn.Module):
    """Maps the sums of probes to their outputs.

    The gain of an activation is multiplied into the matrix that follows it. Matrices are as `both_parts`
    returns them.
    """

    down: Tensor
    turn: Tensor
    angle: Tensor
    keep: Tensor
    head_in: Tensor
    head_bias: Tensor
    readout: Tensor
    head_out: Tensor

    def __init__(self, probes: Probes) -> None:
        super().__init__()
        self.scalars = probes.config.channels(0)
        matrices = {
            "down": both_parts(probes.down),
            "turn": ANGLE_GAIN * probes.turn,
            "angle": probes.angle,
            "keep": both_parts(SILU_GAIN * probes.keep),
            "head_in": both_parts(SILU_GAIN * probes.head_in[None]),
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
        if not is_fake(sums) and probes:
            from pinchpoint.systems.density.model import fused_readout_triton as kernels

            with on_device(sums):
                for layer in range(layers):
                    kernels.write_state(sums, self.down, self.turn, self.keep, self.angle, states, layer)
                kernels.write_outputs(states, self.head_in, self.head_bias, self.readout, self.head_out, out)
        return out


def can_fuse(probes: Probes) -> bool:
    """Whether the network is narrow enough for the kernels."""
    return max(probes.config.channels(0), probes.config.head) <= _WIDEST


def both_parts(matrices: Tensor) -> Tensor:
    """Return the parts (2, L, N', K') of matrices (L, K, N) for tensor cores.

    They are transposed, and padded by zeros to a power of two and to a multiple of `_STEP`.
    """
    _, rows, columns = matrices.shape
    wide = max(16, 1 << (columns - 1).bit_length())
    return parts_of(functional.pad(matrices.detach().transpose(1, 2), (0, -rows % _STEP, 0, wide - columns)))
