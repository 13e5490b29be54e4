"""Parts of the kernels of wide MLPs: in 16 bits `wide_short_triton`, in float32 `wide_parts_triton`.

    forward                 z_0 = x W_in' + b,   z_i = act(z_i-1) W_i' + b,   out = act(z_last) W_out' + b
    backward, last layer    dW_out += g' act(z_last),   dz_last = (g W_out) act'(z_last)
    backward, layer i       dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)
    backward, first layer   dW_in += dz_0' x,   dx = dz_0 W_in

Rows are edges, columns are features. A weight of 256 x 256, or the sum of its gradient, does not fit into
shared memory or registers in every precision: a program takes one block of columns, NB of H, and every n-th
tile of edges. z of a slice of edges is in memory, (slice, H) for each hidden layer but the first, and dz
replaces it. The slice begins at edge `begin` of the chunk. Rows beyond the chunk have gradients of zero. Each
program, or each group of programs with one block each, keeps its own sums of gradients; they are added up
afterwards in a fixed order.

NET: a `tile_mlp.Net` without columns, what the kernels are compiled for, and the parts of a product.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # ty: ignore

from pinchpoint.kit.edges.tile_kernels.arithmetic_triton import add_to, split


@triton.jit
def load_first_rows(w_in, b_in, r, NET: tl.constexpr):
    """Rows r of the first weight, in parts, with the bias as a further column."""
    IN: tl.constexpr = NET.inputs
    D0: tl.constexpr = NET.widths[0]
    k = tl.arange(0, NET.inputs_padded)
    mask = (r < D0)[:, None] & (k < IN)[None, :]
    here = tl.load(w_in + r[:, None] * IN + k[None, :], mask=mask, other=0.0).to(tl.float32)
    if NET.bias:
        column = tl.load(b_in + r, mask=r < D0, other=0.0).to(tl.float32)
        here = tl.where((k == IN)[None, :], column[:, None], here)
    return split(here, NET)


@triton.jit
def add_first(own, r, total, NET: tl.constexpr):
    """Add rows r of the gradient of the first weight, whose columns are padded; that of ones is the bias."""
    KIN: tl.constexpr = NET.inputs_padded
    D0: tl.constexpr = NET.widths[0]
    k = tl.arange(0, KIN)[None, :]
    add_to(own + r[:, None] * KIN + k, total, (r < D0)[:, None] & (k < KIN))


@triton.jit
def wait_for_last(NET: tl.constexpr):
    """Wait until the launch before this one has ended, and let the next one begin.

    What a program does before it, such as loading weights, it does while the last programs of that launch
    run. Only what earlier launches than that one have written may be read there, and nothing written. Every
    program of a chained kernel calls it, or the launch after the next would begin too early.
    """
    if NET.chained:
        gdc_wait()
        gdc_launch_dependents()
