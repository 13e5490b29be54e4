"""The Triton kernels of `fused_readout` for CUDA. Imported only on machines with a GPU and Triton.

With the sums a_l of interaction l, the state is x_l = silu(sin(t_l) a_l D_l + cos(t_l) x_(l-1) K_l), where
the angle t_l is linear in a_l. The output is x_L r + (silu(h) - silu(b)) o with h = b + sum_l x_l H_l: zero
where all sums are zero. Products with matrices are computed by tensor cores in parts (`tensor_cores`).
"""

# Triton reads the source of these functions, so they have no annotations except Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

from functools import lru_cache

import torch
import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher
from pinchpoint.systems.density.model.tensor_cores_triton import times_parts

_PROBES = 64  # per program


def write_state(
    sums: Tensor, down: Tensor, turn: Tensor, keep: Tensor, angle: Tensor, states: Tensor, layer: int
) -> None:
    """Write the state after an interaction to its columns of states: (P, L * C_0).

    sums: (P, L, C); turn: (L, C); angle: (L,); down, keep: both parts of the matrices, (2, L, N, K), of which
    only C_0 of N columns and C or C_0 of K rows are not zero.
    """
    probes, layers, channels = sums.shape
    scalars = states.shape[1] // layers
    _state(
        triton.cdiv(probes, _PROBES),
        (sums, down, turn, keep, angle, states),
        (probes, channels, scalars, layers, layer, layer * channels, max(0, layer - 1)),
        layer > 0,
        down.shape[2],
        down.shape[3],
        keep.shape[3],
        _PROBES,
        warps=_warps(sums.device),
    )


def write_outputs(
    states: Tensor, head_in: Tensor, bias: Tensor, readout: Tensor, head_out: Tensor, out: Tensor
) -> None:
    """Write the outputs of each probe to out: (P, outputs).

    head_in: both parts of the matrix, (2, 1, N, K), of which only as many columns as `bias` has are not zero.
    """
    scalars = len(readout)
    _outputs(
        triton.cdiv(len(out), _PROBES),
        (states, head_in, bias, readout, head_out, out),
        (len(out), states.shape[1], states.shape[1] - scalars, scalars, len(bias)),
        out.shape[1],
        triton.next_power_of_2(scalars),
        head_in.shape[2],
        head_in.shape[3],
        _PROBES,
        warps=_warps(states.device),
    )


@lru_cache(maxsize=16)
def _warps(device: torch.device) -> int:
    """Return four for Hopper cards; on others, a program would need more registers than four warps have."""
    return 4 if torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] == 9 else 8


@triton.jit
def _silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def _product(
    left,
    there,
    count,
    matrix,
    second,
    turn,
    HAS_TURN: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    PROBES: tl.constexpr,
):
    """Return the product of rows, given by pointers, with a matrix, and their sums weighted by `turn`.

    second: how far the second part of the matrix is from the first.
    """
    # Rows of the matrix that are multiplied at a time: two times as many fit into shared memory, also of
    # cards that have little.
    STEP: tl.constexpr = 32 if COLUMNS <= 128 else 16
    column = tl.arange(0, COLUMNS)
    total = tl.zeros((PROBES, COLUMNS), tl.float32)
    turned = tl.zeros((PROBES, STEP), tl.float32)
    for first in tl.range(0, ROWS, STEP, num_stages=2):
        row = first + tl.arange(0, STEP)
        value = tl.load(left[:, None] + row[None, :], mask=there[:, None] & (row < count)[None, :], other=0.0)
        if HAS_TURN:
            turned += value * tl.load(turn + row, mask=row < count, other=0.0)[None, :]
        own = matrix + column[None, :] * ROWS + row[:, None]
        total = times_parts(value, tl.load(own), tl.load(own + second), total)
    return total, tl.sum(turned, axis=1)


@Launcher
@triton.jit(do_not_specialize=["probes", "channels", "scalars", "layers", "layer", "first", "before"])
def _state(
    sums,
    down,
    turn,
    keep,
    angle,
    states,
    probes,
    channels,
    scalars,
    layers,
    layer,
    first,
    before,
    HAS_KEPT: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    KEPT_ROWS: tl.constexpr,
    PROBES: tl.constexpr,
):
    probe = tl.program_id(0).to(tl.int64) * PROBES + tl.arange(0, PROBES)
    there = probe < probes
    down_size, keep_size = COLUMNS * ROWS, COLUMNS * KEPT_ROWS
    inner, turned = _product(
        sums + probe * (layers * channels) + first,
        there,
        channels,
        down + layer * down_size,
        layers * down_size,
        turn + first,
        True,
        COLUMNS,
        ROWS,
        PROBES,
    )
    turned += tl.load(angle + layer)
    inner *= tl.sin(turned)[:, None]
    own = states + probe * (layers * scalars)
    if HAS_KEPT:
        kept, _ = _product(
            own + before * scalars,
            there,
            scalars,
            keep + before * keep_size,
            (layers - 1) * keep_size,
            turn,
            False,
            COLUMNS,
            KEPT_ROWS,
            PROBES,
        )
        inner += tl.cos(turned)[:, None] * kept
    column = tl.arange(0, COLUMNS)[None, :]
    to = own[:, None] + layer * scalars + column
    tl.store(to, _silu(inner), mask=there[:, None] & (column < scalars))


@Launcher
@triton.jit(do_not_specialize=["probes", "state_stride", "first", "scalars", "units"])
def _outputs(
    states,
    head_in,
    bias,
    readout,
    head_out,
    out,
    probes,
    state_stride,
    first,
    scalars,
    units,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HIDDEN: tl.constexpr,
    ROWS: tl.constexpr,
    PROBES: tl.constexpr,
):
    probe = tl.program_id(0).to(tl.int64) * PROBES + tl.arange(0, PROBES)
    there = probe < probes
    own = states + probe * state_stride
    inner, _ = _product(own, there, state_stride, head_in, HIDDEN * ROWS, bias, False, HIDDEN, ROWS, PROBES)
    column, unit = tl.arange(0, COLUMNS), tl.arange(0, HIDDEN)
    is_state, is_unit = column < scalars, unit < units
    state = tl.load(
        own[:, None] + first + column[None, :], mask=there[:, None] & is_state[None, :], other=0.0
    )
    offset = tl.zeros((PROBES, HIDDEN), tl.float32) + tl.load(bias + unit, mask=is_unit, other=0.0)[None, :]
    inner = _silu(inner + offset) - _silu(offset)
    for output in tl.static_range(OUTPUTS):
        of_state = tl.load(readout + column * OUTPUTS + output, mask=is_state, other=0.0)
        of_hidden = tl.load(head_out + unit * OUTPUTS + output, mask=is_unit, other=0.0)
        value = tl.sum(state * of_state[None, :], axis=1) + tl.sum(inner * of_hidden[None, :], axis=1)
        tl.store(out + probe * OUTPUTS + output, value, mask=there)
