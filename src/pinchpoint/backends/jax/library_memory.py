"""Memory that depends on the kernels XLA chooses on the card: intervals of the peak, scratch for tuning.

When XLA compiles a program for a GPU, it times the kernels that could run each matrix product and each
convolution. For this it allocates the operands, the result twice, guard zones around them, and the workspace
of the library. A program that is small at run time can have its peak here. The laws below were fitted to
compilations on one H200 with JAX 0.11 (benchmarks/results/jax_scripts_h200.json): 20 products, within
1 % where nothing is fused with them, and 30 convolutions, within a third.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.autotuning import CONVOLUTION_SPREAD, UNSPLIT
from pinchpoint.backends.jax.primitives import CALLS, LOOPS, SCRATCH, kind_of
from pinchpoint.backends.jax.program import bytes_of

PLUGIN_HINT = "pip install 'pinchpoint[jax-cuda]' gives XLA's own analysis; no GPU is needed"
# What a program adds (outputs and temporaries), measured for 30 programs on an H200: at least 0.68 of the
# liveness walk, and at most 1.15 of it or 0.93 of the walk without fusions, whichever is larger.
LIVENESS_LOW, LIVENESS_HIGH = 0.6, 1.25
# The same against XLA's analyses without the card: at least 0.79 of the smaller and at most 1.33 of the
# larger; sorts are apart.
XLA_LOW, XLA_HIGH = 0.75, 1.4
SORTS = frozenset({"sort", "top_k", "approx_top_k"})
_MIB = 1 << 20
_PRODUCT_GUARDS = 96 * _MIB  # around the arrays of a product, with the workspace of cuBLAS
_CONVOLUTION_GUARDS = 80 * _MIB
_CONVOLUTION = 10.8  # times input and output: transforms of Winograd and FFT kernels for 32-bit floats
_HALF_CONVOLUTION = 4.0  # the same for 16-bit floats
_SOLVER = 32 * _MIB  # workspace of cuSOLVER and similar libraries beside the matrices


@dataclass(frozen=True)
class Interval:
    """Bytes: what to expect, the least and the most."""

    usual: int
    low: int
    high: int


def liveness_interval(
    live_bytes: int,
    added_bytes: int,
    most_added_bytes: int,
    *,
    output_bytes: int,
    workspace: int,
    scratch: int,
    tuning: tuple[int, int],
    first_live_bytes: int,
) -> Interval:
    """The peak of a program by liveness, while it is compiled or while it runs.

    live_bytes: alive around it; added_bytes, most_added_bytes: what it adds with and without fusions;
    workspace: the part of added_bytes for cuBLAS; scratch: the most that other libraries take;
    first_live_bytes: alive when it was compiled; tuning: scratch of the compiler, usual and most.
    """
    usual = live_bytes + added_bytes
    low = live_bytes + min(added_bytes, max(output_bytes, int(LIVENESS_LOW * (added_bytes - workspace))))
    high = live_bytes + max(int(LIVENESS_HIGH * added_bytes), most_added_bytes) + scratch
    return _with_tuning(Interval(usual, low, high), tuning, first_live_bytes)


def xla_interval(
    live_bytes: int,
    added_bytes: Sequence[int],
    *,
    sorts: int,
    tuning: tuple[int, int],
    first_live_bytes: int,
) -> Interval:
    """The peak of a program by XLA's analyses of it: with the expected kernels first, then with others.

    sorts: the most that sorts take, whose scratch XLA does not know without the card.
    """
    least, most = min(added_bytes), max(added_bytes)
    peak = Interval(
        live_bytes + added_bytes[0],
        live_bytes + int(XLA_LOW * least),
        live_bytes + int(XLA_HIGH * most) + sorts,
    )
    return _with_tuning(peak, tuning, first_live_bytes)


def _with_tuning(interval: Interval, tuning: tuple[int, int], first_live_bytes: int) -> Interval:
    usual, most = tuning
    return Interval(
        max(interval.usual, first_live_bytes + usual),
        interval.low,
        max(interval.high, first_live_bytes + most),
    )


def tuning_bytes(jaxpr: Any) -> tuple[int, int]:
    """Scratch for tuning the largest product or convolution of a program: usual and most."""
    usual = most = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        sizes = [bytes_of(atom.aval) for atom in (*eqn.invars, *eqn.outvars)]
        if name == "dot_general" or (name == "conv_general_dilated" and _is_product(eqn)):
            tuning = _product_tuning(sizes)
        elif name == "conv_general_dilated":
            tuning = _convolution_tuning(sizes, is_wide=eqn.invars[0].aval.dtype.itemsize >= 4)
        else:
            tuning = (0, 0)
        for inner_usual, inner_most in (tuning, *map(tuning_bytes, compat.inner_jaxprs(eqn))):
            usual, most = max(usual, inner_usual), max(most, inner_most)
    return usual, most


def divided_tuning_bytes(
    products: Iterable[Sequence[int]], convolutions: Iterable[Convolution]
) -> tuple[int, int]:
    """The same for a partitioned program. products: the bytes of the operands and the result of each."""
    tunings = [_product_tuning(sizes) for sizes in products]
    tunings += [
        _product_tuning(c.sizes) if c.window == 1 else _convolution_tuning(c.sizes, is_wide=c.is_wide)
        for c in convolutions
    ]
    return max((usual for usual, _ in tunings), default=0), max((most for _, most in tunings), default=0)


def _product_tuning(sizes: Sequence[int]) -> tuple[int, int]:
    scratch = sum(sizes) + sizes[-1] + _PRODUCT_GUARDS
    # A product that is fused with the operations around it reads their operands too.
    return scratch, scratch + 2 * max(sizes) + UNSPLIT


def _convolution_tuning(sizes: Sequence[int], *, is_wide: bool) -> tuple[int, int]:
    arrays = sum(sorted(sizes)[1:])
    scratch = int((_CONVOLUTION if is_wide else _HALF_CONVOLUTION) * arrays) + _CONVOLUTION_GUARDS
    return scratch, scratch + scratch // 20 + CONVOLUTION_SPREAD


@dataclass(frozen=True)
class Convolution:
    """A convolution of a partitioned program. sizes: bytes of operands and result; window: its elements."""

    sizes: tuple[int, ...]
    window: int
    is_wide: bool  # 32 bits or more


def divided_scratch_bytes(convolutions: Iterable[Convolution], sorts: int, library_bytes: int) -> int:
    """The most that one library call of a partitioned program may take while it runs.

    sorts: for a sort; library_bytes: operands and results of the largest call of another library.
    """
    most = max([sorts + _SOLVER if sorts else 0, *(c.sizes[0] * c.window for c in convolutions)])
    return max(most, 3 * library_bytes + _SOLVER if library_bytes else 0)


def scratch_bytes(jaxpr: Any, *, only_sorts: bool = False) -> int:
    """The most that one library call of a program may take while it runs.

    The factors are guesses on the safe side; XLA's own analysis has the exact numbers, except for sorts.
    """
    most = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if only_sorts:
            most = max(most, 3 * _bytes(eqn) if name in SORTS else 0)
        elif name == "conv_general_dilated":
            most = max(most, bytes_of(eqn.invars[0].aval) * _window(eqn))
        elif name in SCRATCH:
            most = max(most, 3 * _bytes(eqn) + _SOLVER)
        elif kind_of(name) == "opaque" and name not in CALLS | LOOPS:
            most = max(most, sum(map(_all_bytes, compat.inner_jaxprs(eqn))))
        inner_most = [scratch_bytes(inner, only_sorts=only_sorts) for inner in compat.inner_jaxprs(eqn)]
        most = max([most, *inner_most])
    return most


def _all_bytes(jaxpr: Any) -> int:
    """Every intermediate value of a body whose order of execution is not known."""
    return sum(
        sum(bytes_of(var.aval) for var in eqn.outvars) + sum(map(_all_bytes, compat.inner_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )


def _bytes(eqn: Any) -> int:
    return sum(map(bytes_of, (atom.aval for atom in (*eqn.invars, *eqn.outvars))))


def _is_product(eqn: Any) -> bool:
    """Whether a convolution is tuned like a matrix product: a window of one element, or one per channel."""
    return _window(eqn) == 1 or eqn.params.get("feature_group_count", 1) > 1


def _window(eqn: Any) -> int:
    """Elements of the kernel's window: the factor by which im2col enlarges the input.

    The gradient with respect to a kernel is a convolution too, whose window is as large as the image and
    whose result is as large as the kernel.
    """
    numbers = eqn.params["dimension_numbers"]
    kernel, result = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    return min(
        math.prod(kernel[axis] for axis in numbers.rhs_spec[2:]),
        math.prod(result[axis] for axis in numbers.out_spec[2:]),
    )
