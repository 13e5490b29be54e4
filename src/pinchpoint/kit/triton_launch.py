"""A launcher for Triton kernels with little host time: compiled code is looked up by argument types.

Launching with `kernel[grid](...)` inspects every argument again, which takes longer than running many of our
kernels. A second launch of a kind passes addresses straight to the launcher that Triton compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from torch import Tensor

_TESTED_TRITON = "3.6."  # whose launcher in C takes the arguments in this order
_LARGE = 2**31  # from where on whole numbers need 64 bits
_ALIGNED = 16  # bytes: Triton compiles different code for tensors that are not aligned
Launch = Callable[[int, tuple[Any, ...]], None]


class _Options(NamedTuple):
    warps: int
    stages: int
    chained: bool


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
        chained: bool = False,
    ) -> None:
        """chained: the kernel itself waits for the launch before it, and may begin before that has ended."""
        addresses = [one.data_ptr() for one in tensors]
        # Tensors of the CPU among those of a GPU are an error that Triton raises.
        if len({one.is_cuda for one in tensors}) == 1 and are_aligned(addresses):
            key = _key(tensors, numbers, constants, _Options(warps, stages, chained))
            launch = self._compiled.get(key)
            if launch is not None:
                launch(programs, (*addresses, *numbers, *constants))
                return
            kernel = self._compile(programs, (*tensors, *numbers, *constants), warps, stages, chained)
            if kernel is not None:  # Triton's interpreter compiles nothing
                self._compiled[key] = _direct(kernel, tensors[0].device.index)
        else:
            self._compile(programs, (*tensors, *numbers, *constants), warps, stages, chained)

    def bind(self, *constants: Any, warps: int = 4, stages: int = 3, chained: bool = False) -> BoundLauncher:
        return BoundLauncher(self, constants, _Options(warps, stages, chained))

    def find(
        self,
        tensors: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        constants: tuple[Any, ...],
        options: _Options,
    ) -> Launch | None:
        """What launches the kernel with aligned tensors of these kinds, if it is compiled."""
        return self._compiled.get(_key(tensors, numbers, constants, options))

    def _compile(
        self, programs: int, arguments: tuple[Any, ...], warps: int, stages: int, chained: bool
    ) -> Any:
        """Launch by Triton itself, and return what it compiled."""
        more = {"launch_pdl": True} if chained else {}  # programmatic dependent launch
        return self.kernel[(programs, 1, 1)](*arguments, num_warps=warps, num_stages=stages, **more)


class BoundLauncher:
    """Launches a kernel with the same constants and with tensors of the same dtypes on the same device.

    That takes less time than looking at all arguments again.
    """

    def __init__(self, launcher: Launcher, constants: tuple[Any, ...], options: _Options) -> None:
        self._launcher, self._constants, self._options = launcher, constants, options
        self._launch: Launch | None = None

    def __call__(self, programs: int, tensors: tuple[Tensor, ...], *numbers: int) -> None:
        self._launcher(programs, tensors, numbers, *self._constants, **self._options._asdict())
        if self._launch is None and are_aligned(one.data_ptr() for one in tensors):
            self._launch = self._launcher.find(tensors, numbers, self._constants, self._options)

    def repeat(self, programs: int, addresses: Sequence[int], *numbers: int) -> bool:
        """Launch with tensors at aligned addresses, if the kernel is compiled; whether it is.

        numbers: of 32 bits, which is not checked again.
        """
        if self._launch is None:
            return False
        self._launch(programs, (*addresses, *numbers, *self._constants))
        return True


def are_aligned(addresses: Iterable[int]) -> bool:
    """Whether kernels compiled for aligned tensors may be launched with these."""
    return not reduce(or_, addresses, 0) % _ALIGNED


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
    options: _Options,
) -> tuple[Any, ...]:
    """What a kernel of aligned tensors is compiled for."""
    dtypes = [one.dtype for one in tensors]
    return tensors[0].device.index, options, constants, *dtypes, *map(_kind, numbers)


def _kind(number: float) -> tuple[type, bool]:
    """What Triton compiles different code for: 3 and 3.0, and whole numbers of 32 and 64 bits."""
    return type(number), isinstance(number, int) and not -_LARGE <= number < _LARGE
