"""Layers of a small MLP in tiles: weights, products, and what they read and write. Used by `mlp_triton`.

NET: a `tile_mlp.Net`. weights: all weights and biases, from the first layer to the last, then the results of
`mlp_triton.pack`.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

from pinchpoint.kit.edges.tile_kernels.arithmetic_triton import (
    add_layer,
    add_to,
    along,
    load_bias,
    load_weight,
    sum_edges,
    zeros,
)


@triton.jit
def load_first(weights, NET: tl.constexpr):
    WIDTH: tl.constexpr = NET.hidden_padded
    return load_weight(
        weights[0], weights[1], NET.widths[0], NET.inputs, WIDTH, NET.inputs_padded, NET.bias, NET
    )


@triton.jit
def load_between(weights, LAYER: tl.constexpr, NET: tl.constexpr):
    """The weight from hidden layer LAYER - 1 to LAYER."""
    WIDTH: tl.constexpr = NET.hidden_padded
    ABOVE: tl.constexpr = NET.widths[LAYER]
    BELOW: tl.constexpr = NET.widths[LAYER - 1]
    return load_weight(weights[2 * LAYER], weights[2 * LAYER + 1], ABOVE, BELOW, WIDTH, WIDTH, False, NET)


@triton.jit
def _load_packed(packed, factors, LAYER: tl.constexpr, NET: tl.constexpr):
    """The same from what `pack` wrote, on its way to shared memory without a conversion in registers."""
    WIDTH: tl.constexpr = NET.hidden_padded
    at = packed + (LAYER - 1) * NET.parts * WIDTH * WIDTH
    at += tl.arange(0, WIDTH)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    if NET.parts == 2:
        weight = tl.load(at), tl.load(at + WIDTH * WIDTH), tl.load(factors + LAYER - 1)
    else:
        weight = (tl.load(at),)
    return weight


@triton.jit
def load_hidden(weights, LAYER: tl.constexpr, NET: tl.constexpr):
    """The weight from hidden layer LAYER - 1 to LAYER, packed where edges are columns."""
    if NET.columns:
        weight = _load_packed(weights[10], weights[11], LAYER, NET)
    else:
        weight = load_between(weights, LAYER, NET)
    return weight


@triton.jit
def load_last(weights, NET: tl.constexpr):
    AT: tl.constexpr = 2 * NET.last + 2
    WIDTH: tl.constexpr = NET.hidden_padded
    return load_weight(
        weights[AT], weights[AT + 1], NET.outputs, NET.widths[NET.last], NET.outputs_padded, WIDTH, False, NET
    )


@triton.jit
def first_layer(weight, x, NET: tl.constexpr):
    """z_0 from the inputs, whose column of ones multiplies the bias."""
    return add_layer(weight, x, zeros(NET.hidden_padded, NET), NET)


@triton.jit
def next_layer(weight, weights, a, LAYER: tl.constexpr, NET: tl.constexpr):
    """z of hidden layer LAYER from the values below."""
    start = load_bias(weights[2 * LAYER + 1], NET.widths[LAYER], NET.hidden_padded, NET)
    return add_layer(weight, a, start, NET)


@triton.jit
def write_outputs(out, weight, weights, a, edge, count, NET: tl.constexpr):
    """Write the last layer of a tile; a: the values below."""
    start = load_bias(weights[2 * NET.last + 3], NET.outputs, NET.outputs_padded, NET)
    result = add_layer(weight, a, start, NET)
    c, e = along(tl.arange(0, NET.outputs_padded), edge, NET)
    mask = (e < count) & (c < NET.outputs)
    tl.store(out + e * NET.outputs + c, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def load_gradient(gradient, edge, count, NET: tl.constexpr):
    c, e = along(tl.arange(0, NET.outputs_padded), edge, NET)
    mask = (e < count) & (c < NET.outputs)
    return tl.load(gradient + e * NET.outputs + c, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def add_last(own, sum_out, sum_g, NET: tl.constexpr):
    """Add the gradients of the last layer: the transposed weight, and the gradient of the outputs."""
    WIDE: tl.constexpr = NET.widths[NET.last]
    OUT: tl.constexpr = NET.outputs
    h = tl.arange(0, NET.hidden_padded)[:, None]
    c = tl.arange(0, NET.outputs_padded)
    to = own + NET.places[NET.last + 1]
    add_to(to + c[None, :] * WIDE + h, sum_out, (c < OUT)[None, :] & (h < WIDE))
    add_to(to + OUT * WIDE + c, sum_edges(sum_g, NET), c < OUT)


@triton.jit
def place_of(tile, NET: tl.constexpr):
    """Where the values of hidden features of a tile are in a buffer; tile: its number in the round."""
    h, e = along(tl.arange(0, NET.hidden_padded), tl.arange(0, NET.edges), NET)
    if NET.columns:
        inside = h * NET.edges + e
    else:
        inside = e * NET.hidden_padded + h
    return tl.cast(tile, tl.int64) * (NET.hidden_padded * NET.edges) + inside
