"""Memory that XLA's GPU libraries take beside the arrays of a program: scratch while kernels are tuned.

When XLA compiles a program for a GPU, it times the kernels that could run each matrix product and each
convolution. For this it allocates the operands and the result of the operation, twice, each with a guard
zone of 16 MiB, and the workspace of the library. A program that is small at run time can have its peak here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pinchpoint.backends.jax import compat

PLUGIN_HINT = "pip install 'pinchpoint[jax-cuda]' makes it exact; no GPU is needed"
# Shares of what a program adds (outputs and temporaries) by which liveness differs from XLA's assignment.
# Fitted to the twelve steps of benchmarks/results/jax_h200.json, which lie between 0.61 and 1.46.
LIVENESS_LOW, LIVENESS_HIGH = 0.55, 1.6
_GUARD = 16 << 20  # bytes around each array that the tuner allocates


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
    tuning: tuple[int, int],
    first_live_bytes: int,
) -> Interval:
    """The peak of a program by liveness, while it is compiled or while it runs.

    live_bytes: alive around it; added_bytes, most_added_bytes: what it adds with and without fusions;
    first_live_bytes: alive when it was compiled; tuning: scratch of the compiler, usual and most.
    """
    usual = live_bytes + added_bytes
    low = live_bytes + min(added_bytes, max(output_bytes, int(LIVENESS_LOW * added_bytes)))
    high = live_bytes + max(int(LIVENESS_HIGH * added_bytes), most_added_bytes)
    return _with_tuning(Interval(usual, low, high), tuning, first_live_bytes)


def xla_interval(
    live_bytes: int, added_bytes: int, tuning: tuple[int, int], first_live_bytes: int
) -> Interval:
    """The peak of a program by XLA's analysis of it."""
    usual = live_bytes + added_bytes
    return _with_tuning(Interval(usual, usual, usual), tuning, first_live_bytes)


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
        if eqn.primitive.name == "dot_general":
            arrays = _bytes(eqn)
            usual, most = max(usual, 2 * arrays + 5 * _GUARD), max(most, 4 * arrays + 8 * _GUARD)
        elif eqn.primitive.name == "conv_general_dilated":
            arrays = _bytes(eqn)
            spread = _bytes_of(eqn.invars[0].aval) * _window(eqn)
            usual = max(usual, 2 * arrays + 5 * _GUARD + 2 * spread)
            most = max(most, 4 * arrays + 8 * _GUARD + 3 * spread)
        for inner in compat.inner_jaxprs(eqn):
            inner_usual, inner_most = tuning_bytes(inner)
            usual, most = max(usual, inner_usual), max(most, inner_most)
    return usual, most


def _bytes(eqn: Any) -> int:
    return sum(_bytes_of(atom.aval) for atom in (*eqn.invars, *eqn.outvars))


def _bytes_of(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


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
