"""Buffers of cuFFT, cuSOLVER and other libraries, and of kernels that compute in tables of their own.

The sizes are those of benchmarks/results/math_probe_h200.json. A size that a library chooses is a Span.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.core.events import Span
from pinchpoint.core.units import MIB

Sizes = list[int] | list[int | Span]


class Model(Protocol):
    """What sizes depend on beside the shapes."""

    processors: int


def arguments_by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments that a call gives, by name; those it leaves out are missing."""
    return dict(zip(compat.argument_names(func), args, strict=False)) | kwargs


def wrapped_dim(dim: int, tensor: torch.Tensor) -> int:
    """The number of a dimension, which may be counted from the last; another one is an error, as in torch."""
    count = max(tensor.dim(), 1)
    if not -count <= dim < count:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})"
        )
    return dim % count


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


_SMALL_PRIME = 7  # cuFFT transforms sides whose prime factors are at most this without a workspace ...
_SHORT_SIDE = 32_768  # ... up to this length


def fourier(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> list[int | Span]:
    """cuFFT's workspace, and the copy of the input that a transform to real numbers overwrites."""
    source, to_real = args[0], func.name().startswith("aten::_fft_c2r")
    real = out if to_real or source.is_complex() else source
    complex_bytes = real.numel() * (16 if real.dtype in (torch.float64, torch.complex128) else 8)
    sides = [real.shape[dim] for dim in args[1]]
    is_smooth = all(_largest_prime(side) <= _SMALL_PRIME for side in sides)
    is_short = max(sides, default=1) <= _SHORT_SIDE
    copies: list[int | Span] = [bytes_of(source)] if to_real else []
    if is_smooth and is_short:
        return copies
    if is_smooth:
        return [*copies, Span(complex_bytes if source.is_complex() and not to_real else 0, 0, complex_bytes)]
    if is_short:
        return [*copies, Span(0, 0, complex_bytes)]
    return [*copies, Span(int(2.55 * complex_bytes), 0, int(2.65 * complex_bytes))]


def _largest_prime(number: int) -> int:
    prime, largest = 2, 1
    while prime * prime <= number:
        while number % prime == 0:
            number, largest = number // prime, prime
        prime += 1
    return max(number, largest)


def solver(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> list[int | Span]:
    """cuSOLVER's workspace: for one matrix of a batch, except for small eigenproblems, which run together."""
    source, name = args[0], func.name().split(".")[0]
    batch_bytes, side = bytes_of(source), max(source.shape[-2:], default=1)
    count = source.numel() // max(source.shape[-1] * source.shape[-2], 1)
    matrix_bytes = batch_bytes // max(count, 1)
    if name == "aten::_linalg_eigh":
        computes_vectors = kwargs.get("compute_v", args[2] if len(args) > 2 else True)
        copies: list[int | Span] = [] if computes_vectors else [batch_bytes]
        if side <= 32:
            each = 261_000 + 3_500 * side
            return [*copies, Span(count * each, count * 280_000, count * 400_000)]
        return [*copies, Span(matrix_bytes + 200_000, 0, 5 * matrix_bytes + 2 * MIB)]
    usual, most = {
        "aten::_linalg_svd": (batch_bytes + 2 * matrix_bytes, 7 * batch_bytes // 2 + 6 * matrix_bytes),
        "aten::linalg_eig": (2 * batch_bytes + matrix_bytes, 7 * batch_bytes // 2),
        "aten::linalg_qr": (3 * MIB + matrix_bytes, 4 * MIB + 4 * matrix_bytes),
        "aten::_linalg_slogdet": (0, batch_bytes),
    }[name]
    return [Span(usual, 0, most + 200_000)]


def multinomial(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Exponentials as large as the probabilities, and the buffers that select the largest quotients."""
    return [bytes_of(args[0]) + 1024 * (args[0].numel() // max(args[0].shape[-1], 1))]


def scatter_mean(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """A mean counts its contributions: ones, counts, and the mask of those without any."""
    reduce = kwargs.get("reduce", args[4] if len(args) > 4 else "")
    return [bytes_of(args[3]), bytes_of(out), out.numel()] if reduce == "mean" else []


def distance_backward(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> list[int | Span]:
    """One row of coordinates per pair, and the stages of their sum."""
    gradient, first = args[0], args[1]
    pair_bytes = gradient.numel() * first.element_size()
    return [pair_bytes * first.shape[-1], Span(2 * pair_bytes, 0, 3 * pair_bytes)]


def complex_to_real(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The absolute value and the angle of complex numbers are computed as complex numbers first."""
    return [bytes_of(args[0])] if args[0].is_complex() else []


def triangular_solves(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """A copy of the right-hand side of one matrix; batches have none. From one call of either kind."""
    return [bytes_of(out)] if out.dim() == 2 else []


def ctc_loss_backward(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [bytes_of(args[6])]  # a table like that of the forward pass
