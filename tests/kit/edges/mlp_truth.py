"""What the kernels of edge MLPs are compared with: float64, and the error that a ReLU's kink adds to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from benchmarks.kit import relu_kinks
from torch import Tensor, nn

EDGES = 100_003  # many, so that every program works: a tile that is computed wrongly may be right for a few
BARS = {"float32": 3e-6, "tf32": 1e-2, "bfloat16": 2e-2, "float16": 4e-3}
# Of a product's operands. TF32 cuts digits off, and sums of products in float32 add to it.
ROUNDOFF = {"tf32": 2.0**-10, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def network(widths: tuple[int, ...], act: Any = nn.GELU, *, bias: bool = True) -> nn.Sequential:
    parts: list[nn.Module] = []
    for i in range(len(widths) - 1):
        parts += [nn.Linear(widths[i], widths[i + 1], bias=bias), act()]
    return nn.Sequential(*parts[:-1])


@contextmanager
def products(precision: str) -> Iterator[torch.dtype]:
    """The dtype of a precision, with which cuBLAS multiplies float32 numbers in tf32 if that is its name."""
    # pytest's monkeypatch would delete the attribute afterwards, because torch keeps it elsewhere.
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield torch.float32 if precision == "tf32" else getattr(torch, precision)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def truth(mlp: nn.Sequential, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """The outputs in float64, and the gradients of the inputs and of each parameter."""
    return gradients(copy.deepcopy(mlp).double(), x.double(), gradient.double())


def gradients(mlp: nn.Sequential, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """The outputs, and the gradients of the inputs and of each parameter."""
    leaf = x.detach().clone().requires_grad_()
    out = mlp(leaf)
    return [out.detach(), *torch.autograd.grad(out, [leaf, *mlp.parameters()], gradient)]


def error(value: Tensor, expected: Tensor) -> float:
    return float((value.double() - expected).norm() / expected.norm().clamp_min(1e-30))


def defined(mlp: nn.Sequential, x: Tensor, gradient: Tensor, precision: str) -> Tensor:
    """The gradient of the outputs, zero for edges where that of a ReLU is not defined in float32.

    In other precisions most edges have such a unit, and `bars` are wider instead.
    """
    return relu_kinks.without_kinks(mlp, x, gradient) if precision == "float32" else gradient


def require_close(results: list[Tensor], mlp: nn.Sequential, x: Tensor, gradient: Tensor, name: str) -> None:
    """Assert that the outputs, and the gradients of the inputs and each parameter, are those of float64."""
    for value, expected, bar in zip(results, truth(mlp, x, gradient), bars(mlp, x, name), strict=True):
        assert error(value, expected) < bar


def bars(mlp: nn.Sequential, x: Tensor, name: str) -> list[float]:
    """The largest errors of the outputs, and of the gradients of the inputs and of each parameter."""
    return [max(BARS[name], 2 * flip) for flip in flip_errors(mlp, x, name)]  # the flips of one draw scatter


def flip_errors(mlp: nn.Sequential, x: Tensor, precision: str) -> list[float]:
    """The usual error that a ReLU at its kink adds to the values, the inputs' gradient and each parameter's.

    If a share of the units flips, of which half are active, the relative error is about sqrt(2 share),
    whatever computes it. A gradient depends on the flips of the layers between it and the outputs; values do
    not jump. In float32, edges with such a unit are left out (`defined`).
    """
    count = 2 + len(list(mlp.parameters()))
    near = [] if precision == "float32" else relu_kinks.near_zero(mlp, x, ROUNDOFF[precision])
    if not near:
        return [0.0] * count
    shares = [float(one.double().mean()) for one in near]
    linear = list(mlp)[0::2]
    later = [sum(shares[at:]) for at in range(len(linear))]
    names = [name for name, _ in linear[0].named_parameters()]
    flips = [0.0, later[0], *(share for share in later for _ in names)]
    return [(2 * share) ** 0.5 for share in flips]
