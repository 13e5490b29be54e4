"""The Triton kernels of `fused_readout` for CUDA. Imported only on machines with a GPU and Triton.

With the sums a_l of interaction l, the state is x_l = silu(sin(t_l) a_l D_l + cos(t_l) x_(l-1) K_l), where
the angle t_l is linear in a_l. The output is x_L r + (silu(h) - silu(b)) o with h = b + sum_l x_l H_l: zero
where all sums are zero. The kernels compute everything but the products with the matrices D, K and H.
"""

# Triton reads the source of these functions, so they have no annotations except Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.edges.edge_ops_triton import power_of_2
from pinchpoint.kit.triton_launch import Launcher

_PROBES = 16  # per program


def write_state(
    mapped: Tensor, kept: Tensor | None, angle: Tensor, states: Tensor, layer: int, scalars: int
) -> None:
    """Write the state after an interaction to its columns of states: (P, L * C_0).

    mapped: (P, columns), whose column C_0 is the part of the angle that depends on the sums; kept: (P, C_0);
    angle: (L,), the constant parts of the angles.
    """
    unit = _unit(mapped.stride(0), states.stride(0), scalars)
    _state(
        -(-len(states) // _PROBES),
        (mapped, mapped if kept is None else kept, angle, states),
        (
            len(states),
            layer,
            layer * scalars // unit,
            mapped.stride(0) // unit,
            states.stride(0) // unit,
            scalars // unit,
        ),
        kept is not None,
        unit,
        power_of_2(scalars),
        _PROBES,
    )


def write_outputs(
    states: Tensor, hidden: Tensor, bias: Tensor, readout: Tensor, head_out: Tensor, out: Tensor
) -> None:
    """Write the outputs of each probe to out: (P, outputs). hidden: (P, H), without the bias."""
    scalars, units = len(readout), hidden.shape[1]
    unit = _unit(states.stride(0), scalars, units)
    _outputs(
        -(-len(out) // _PROBES),
        (states, hidden, bias, readout, head_out, out),
        (
            len(out),
            (states.shape[1] - scalars) // unit,
            states.stride(0) // unit,
            scalars // unit,
            units // unit,
        ),
        out.shape[1],
        unit,
        power_of_2(scalars),
        power_of_2(units),
        _PROBES,
    )


def _unit(*columns: int) -> int:
    """Return four if all numbers of columns are multiples of four, otherwise one.

    The kernels get them in this unit, so that Triton knows that loads of four columns are aligned.
    """
    return 1 if any(count % 4 for count in columns) else 4


@triton.jit
def _silu(x):
    return x / (1 + tl.exp(-x))


@Launcher
@triton.jit(do_not_specialize=["probes", "layer", "first", "mapped_stride", "state_stride", "scalars"])
def _state(
    mapped,
    kept,
    angle,
    states,
    probes,
    layer,
    first,
    mapped_stride,
    state_stride,
    scalars,
    HAS_KEPT: tl.constexpr,
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    PROBES: tl.constexpr,
):
    first, mapped_stride, state_stride, scalars = (
        first * UNIT,
        mapped_stride * UNIT,
        state_stride * UNIT,
        scalars * UNIT,
    )
    probe = tl.program_id(0).to(tl.int64) * PROBES + tl.arange(0, PROBES)
    column = tl.arange(0, COLUMNS)[None, :]
    there = (probe < probes)[:, None] & (column < scalars)
    turn = tl.load(angle + layer) + tl.load(
        mapped + probe * mapped_stride + scalars, mask=probe < probes, other=0.0
    )
    inner = tl.load(mapped + probe[:, None] * mapped_stride + column, mask=there, other=0.0)
    inner *= tl.sin(turn)[:, None]
    if HAS_KEPT:
        before = tl.load(kept + probe[:, None] * scalars + column, mask=there, other=0.0)
        inner += tl.cos(turn)[:, None] * before
    tl.store(states + probe[:, None] * state_stride + first + column, _silu(inner), mask=there)


@Launcher
@triton.jit(do_not_specialize=["probes", "first", "state_stride", "scalars", "units"])
def _outputs(
    states,
    hidden,
    bias,
    readout,
    head_out,
    out,
    probes,
    first,
    state_stride,
    scalars,
    units,
    OUTPUTS: tl.constexpr,
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDDEN: tl.constexpr,
    PROBES: tl.constexpr,
):
    first, state_stride, scalars, units = first * UNIT, state_stride * UNIT, scalars * UNIT, units * UNIT
    probe = tl.program_id(0).to(tl.int64) * PROBES + tl.arange(0, PROBES)
    here = (probe < probes)[:, None]
    column, unit = tl.arange(0, COLUMNS), tl.arange(0, HIDDEN)
    is_state, is_unit = column < scalars, unit < units
    state = states + probe[:, None] * state_stride + first + column[None, :]
    state = tl.load(state, mask=here & is_state[None, :], other=0.0)
    inner = tl.load(hidden + probe[:, None] * units + unit[None, :], mask=here & is_unit[None, :], other=0.0)
    offset = tl.zeros((PROBES, HIDDEN), tl.float32) + tl.load(bias + unit, mask=is_unit, other=0.0)[None, :]
    inner = _silu(inner + offset) - _silu(offset)
    for output in tl.static_range(OUTPUTS):
        of_state = tl.load(readout + column * OUTPUTS + output, mask=is_state, other=0.0)
        of_hidden = tl.load(head_out + unit * OUTPUTS + output, mask=is_unit, other=0.0)
        value = tl.sum(state * of_state[None, :], axis=1) + tl.sum(inner * of_hidden[None, :], axis=1)
        tl.store(out + probe * OUTPUTS + output, value, mask=probe < probes)
