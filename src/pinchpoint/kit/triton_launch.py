"""Triton kernels launched with little work on the host: what was compiled is looked up once for each kind of arguments.

To launch by `kernel[grid](...)` looks at every argument again, which takes longer than many of our kernels run.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

_ALIGNED = 16  # bytes: Triton compiles otherwise for tensors that begin elsewhere


class Launcher:
    """A kernel of tensors, numbers that it is not specialised on (whole ones below 2**31), and constants, in this order.

    All on the current device.
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
        # A distance given as 3 is another kind of argument than one of 3.0.
        key = (device, warps, constants, *(one.dtype for one in tensors), *map(type, numbers))
        if any(one.data_ptr() % _ALIGNED for one in tensors):
            self.kernel[grid](*tensors, *numbers, *constants, num_warps=warps)
        elif (known := self._compiled.get(key)) is not None:
            known[grid](*tensors, *numbers, *constants)
        else:
            self._compiled[key] = self.kernel[grid](*tensors, *numbers, *constants, num_warps=warps)
