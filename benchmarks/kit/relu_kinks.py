"""Edges at which the gradient of a network of ReLUs is not defined, as far as rounding is concerned.

An input of a ReLU that rounding moves across zero changes the gradient by the whole term of its unit,
whatever computes it. Of 40 million inputs in float32, about one does. Comparisons leave such edges out.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

# Of float32: 16 times the usual error of a layer's product, which is 2^-21 of the root of its squared terms.
FLOAT32_MARGIN = 2.0**-17


def near_zero(mlp: nn.Sequential, x: Tensor, margin: float) -> list[Tensor]:
    """For each hidden layer, (edges, units): whether the input of a ReLU is nearer to zero than its error.

    In float64; the error is `margin` times the root of the sum of the squares of the layer's products, as of
    independent errors of size `margin` in each of them. Empty for other activations.
    """
    if not isinstance(mlp[1], nn.ReLU):
        return []
    linear: list[nn.Linear] = list(copy.deepcopy(mlp).double()[0::2])  # type: ignore[arg-type]
    masks = []
    hidden = x.double()
    with torch.no_grad():
        for layer in linear[:-1]:
            products = hidden.square() @ layer.weight.square().T
            if layer.bias is not None:
                products += layer.bias.square()
            hidden = layer(hidden)
            masks.append(hidden.abs() < margin * products.sqrt())
            hidden = hidden.relu()
    return masks


def without_kinks(mlp: nn.Sequential, x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the outputs, zero for edges with a ReLU at its kink in float32.

    Such an edge then adds nothing to any gradient; its outputs do not jump.
    """
    for near in near_zero(mlp, x, FLOAT32_MARGIN):
        gradient = gradient.masked_fill(near.any(1, keepdim=True), 0)
    return gradient
