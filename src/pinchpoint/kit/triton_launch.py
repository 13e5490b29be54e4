"""A launcher for Triton kernels with little host time: compiled code is looked up by argument types.

Launching with `kernel[grid](...)` inspects every argument again, which takes longer than running many of our
kernels. A second launch of a kind passes addresses straight to the launcher that Triton compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

from torch import Tensor

_TESTED_TRITON = "3.6."  # whose launcher in C takes the arguments in this order
_LARGE = 2**31  # from where on whole numbers need 64 bits
_ALIGNED = 16  # bytes: Triton compiles different code for tensors that are not aligned
Launch = Callable[[int, tuple[Any, ...]], None]


class Launcher:
    """Launches a kernel whose arguments are, in this order, tensors, numbers and constants.

    The kernel is not specialised on the numbers (`do_not_specialize`), but whole numbers that need 64 bits
    are compiled apart. All tensors are on the current device.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[Any, ...], Launch] = {}

    def __call__(
        self,
        programs: int,
        tensors: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        *constants: Any,
        warps: int = 4,
        stages: int = 3,
    ) -> None:
        addresses = [one.data_ptr() for one in tensors]
        # Tensors of the CPU among those of a GPU are an error that Triton raises.
        if len({one.is_cuda for one in tensors}) == 1 and not reduce(or_, addresses) % _ALIGNED:
            key = _key(tensors, numbers, constants, warps, stages)
            launch = self._compiled.get(key)
            if launch is not None:
                launch(programs, (*addresses, *numbers, *constants))
                return
            kernel = self._compile(programs, (*tensors, *numbers, *constants), warps, stages)
            if kernel is not None:  # Triton's interpreter compiles nothing
                self._compiled[key] = _direct(kernel, tensors[0].device.index)
        else:
            self._compile(programs, (*tensors, *numbers, *constants), warps, stages)

    def bind(
        self, tensors: tuple[Tensor | None, ...], *constants: Any, warps: int = 4, stages: int = 3
    ) -> Callable[..., None]:
        """A function that launches the kernel, in less time than by looking at all arguments again.

        Its arguments are the number of programs, the tensors that take the places of None, always of the same
        dtypes, and whole numbers.
        """
        addresses = [0 if one is None else one.data_ptr() for one in tensors]
        places = [at for at, one in enumerate(tensors) if one is None]
        aligned = not reduce(or_, addresses) % _ALIGNED
        ready: Launch | None = None

        def launch(programs: int, others: Sequence[Tensor], *numbers: int) -> None:
            nonlocal ready
            usual = aligned and max(numbers) < _LARGE
            for at, one in zip(places, others, strict=True):
                addresses[at] = own = one.data_ptr()
                usual = usual and not own % _ALIGNED
            if ready is None or not usual:
                rest = iter(others)
                every = tuple(next(rest) if one is None else one for one in tensors)
                self(programs, every, numbers, *constants, warps=warps, stages=stages)
                if usual:
                    ready = self._compiled.get(_key(every, numbers, constants, warps, stages))
            else:
                ready(programs, (*addresses, *numbers, *constants))

        return launch

    def _compile(self, programs: int, arguments: tuple[Any, ...], warps: int, stages: int) -> Any:
        """Launch by Triton itself, and return what it compiled."""
        return self.kernel[(programs, 1, 1)](*arguments, num_warps=warps, num_stages=stages)


def _direct(kernel: Any, device: int | None) -> Launch:
    """A function that launches a compiled kernel with addresses, numbers and constants.

    The launcher in C is called as Triton 3.6 calls it, without hooks and without memory for the kernel's own
    use. In other versions, or if a profiler has set hooks, Triton launches.
    """

    def by_triton(programs: int, arguments: tuple[Any, ...]) -> None:
        kernel[(programs, 1, 1)](*arguments)

    run: Any = getattr(kernel, "run", None)
    launch = getattr(run, "launch", None)
    needs = [getattr(run, name, 1) for name in ("global_scratch_size", "profile_scratch_size")]
    if launch is None or any(needs):
        return by_triton
    import triton  # pyright: ignore[reportMissingImports]  # ty: ignore
    from triton.runtime import driver  # pyright: ignore[reportMissingImports]  # ty: ignore

    if not triton.__version__.startswith(_TESTED_TRITON):
        return by_triton
    hooks = triton.knobs.runtime
    stream_of = driver.active.get_current_stream
    function, metadata = kernel.function, kernel.packed_metadata
    cooperative, dependent = run.launch_cooperative_grid, run.launch_pdl

    def by_address(programs: int, arguments: tuple[Any, ...]) -> None:
        if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
            by_triton(programs, arguments)
            return
        launch(
            programs,
            1,
            1,
            stream_of(device),
            function,
            cooperative,
            dependent,
            None,
            None,
            metadata,
            None,
            None,
            None,
            *arguments,
        )

    return by_address


def _key(
    tensors: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    constants: tuple[Any, ...],
    warps: int,
    stages: int,
) -> tuple[Any, ...]:
    """What a kernel of aligned tensors is compiled for."""
    dtypes = [one.dtype for one in tensors]
    return tensors[0].device.index, warps, stages, constants, *dtypes, *map(_kind, numbers)


def _kind(number: float) -> tuple[type, bool]:
    """What Triton compiles different code for: 3 and 3.0, and whole numbers of 32 and 64 bits."""
    return type(number), isinstance(number, int) and not -_LARGE <= number < _LARGE
