"""A launcher for Triton kernels with little host time: compiled code is looked up by argument types.

Launching with `kernel[grid](...)` inspects every argument again, which takes longer than running many of our
kernels.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

_ALIGNED = 16  # bytes: Triton compiles different code for tensors that are not aligned


class Launcher:
    """Launches a kernel whose arguments are, in this order, tensors, numbers and constants.

    The kernel is not specialised on the numbers (`do_not_specialize`), but whole numbers that need 64 bits
    are compiled apart. All tensors are on the current device.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self,
        programs: int,
        tensors: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        *constants: Any,
        warps: int = 4,
    ) -> None:
        grid = (programs, 1, 1)
        device = tensors[0].device.index
        key = (device, warps, constants, *(one.dtype for one in tensors), *map(_kind, numbers))
        if any(one.data_ptr() % _ALIGNED for one in tensors):
            self.kernel[grid](*tensors, *numbers, *constants, num_warps=warps)
        elif (kernel := self._compiled.get(key)) is not None:
            kernel[grid](*tensors, *numbers, *constants)
        else:
            self._compiled[key] = self.kernel[grid](*tensors, *numbers, *constants, num_warps=warps)


def _kind(number: float) -> tuple[type, bool]:
    """What Triton compiles different code for: 3 and 3.0, and whole numbers of 32 and 64 bits."""
    return type(number), isinstance(number, int) and not -(2**31) <= number < 2**31
