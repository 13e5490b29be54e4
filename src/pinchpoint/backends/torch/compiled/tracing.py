"""`Tracing`: what torch's compiler finds while it traces and lowers a function of the user's.

It sees torch as it is, not as it is patched for the simulated device, except that there is a CUDA device, and
that tensors on it say so. For torch's C++ code these tensors are on the host, because a build for the CPU has
nothing else; so what C++ code decides by device is decided here instead: attention, dropout, and the devices
of new tensors.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.compat import FakeTensor, close_library, fake_device, in_kernel
from pinchpoint.backends.torch.compiled import compat
from pinchpoint.backends.torch.compiled.cuda_graphs import CudaGraphs
from pinchpoint.backends.torch.compiled.generated_code import GeneratedCode
from pinchpoint.backends.torch.compiled.shortcuts import skip_unused_work
from pinchpoint.backends.torch.fake.devices import cuda_device
from pinchpoint.backends.torch.kernels.attention import attention_on
from pinchpoint.backends.torch.observer import Observer

_META = torch.device("meta")
_aten = torch.ops.aten


class Tracing:
    """Patches for the time in which torch compiles; created once, when the first function is compiled."""

    def __init__(self, patches: Patches, observer: Observer, failed: Callable[[Exception], None]) -> None:
        self._patches = patches
        self._observer = observer
        self._code = GeneratedCode(observer)
        self._graphs = CudaGraphs(observer)
        self._depth = 0
        compat.watch_frames(self.section, failed)(patches.set)
        compat.run_without_driver(patches.set)

    @contextlib.contextmanager
    def section(self) -> Iterator[None]:
        """Within this context, torch's compiler may run."""
        if self._depth:
            yield
            return
        self._depth += 1
        collects = gc.isenabled()
        gc.disable()  # the compiler makes millions of objects that stay, and looking through them takes long
        try:
            with self._patches.suspended(), Patches() as patches, compat.without_modes() as modes:
                self._install(patches, modes)
                with _kernels_of_cuda(torch.cuda.get_device_capability()):
                    yield
        finally:
            self._depth -= 1
            if collects:
                gc.enable()

    @contextlib.contextmanager
    def _simulation(self, patches: Patches, modes: Sequence[Any]) -> Iterator[None]:
        """Within this context, the device is simulated as where torch does not compile."""
        with patches.suspended(), self._patches.resumed(), compat.with_modes(modes):
            yield

    def _install(self, patches: Patches, modes: Sequence[Any]) -> None:
        on_device, cuda = self._observer.ledger.holds, cuda_device()

        def device(self: FakeTensor) -> torch.device:
            if in_kernel(self):
                return _META
            return cuda if on_device(self) else fake_device(self)

        patches.set(FakeTensor, "device", property(device))
        compat.leave_package(patches.set)
        compat.pretend_cuda(patches.set)
        compat.ignore_modes(patches.set)
        compat.guard_less(patches.set, self._patches.is_replaced)
        compat.guard_scalars(patches.set)
        compat.place_new_tensors(patches.set, cuda)
        compat.fold_constants_on_host(patches.set)
        compat.describe_device(patches.set)
        compat.pad_products(patches.set)
        compat.make_states_outside(patches.set, lambda: self._simulation(patches, modes))
        compat.capture_with(patches.set, self._graphs)
        skip_unused_work(patches.set)
        compat.compile_backward_within(patches.set, self.section)
        compat.stop_at_code(patches.set, self._code.load, self._code.kernels)
        for name, function in MARKS.items():
            patches.set(builtins, name, function)


@contextlib.contextmanager
def _kernels_of_cuda(capability: tuple[int, int]) -> Iterator[None]:
    """Let operations that C++ code composes by device take the way of CUDA."""
    library = torch.library.Library("aten", "IMPL")

    def on_cuda(tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cuda"

    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if train and 0 < p < 1 and on_cuda(input):
            return torch.native_dropout(input, p, True)[0]
        return _aten.dropout.default.decompose(input, p, train)

    attention = attention_on(
        on_cuda, _aten.scaled_dot_product_attention.default.decompose, capability=capability
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel is replaced, which is intended
            library.impl("scaled_dot_product_attention", attention, "AutogradCPU")
            library.impl("dropout", dropout, "AutogradCPU")
        yield
    finally:
        close_library(library)


# What a marked script calls, without the marks. In a file of no folder, so that the compiler follows it.
_MARKS: dict[str, Any] = {}
exec(
    compile(
        """
def _pinchpoint_for(things, *_):
    return things
def _pinchpoint_while(line):
    return True
def _pinchpoint_while_starts(*_):
    return None
def _pinchpoint_count(value, by, name, line, is_used, kind):
    if kind == "+=":
        value += by
        return value
    if kind == "-=":
        value -= by
        return value
    return value + by if kind == "+" else value - by
def _pinchpoint_count_starts(value, *_):
    return value
def _pinchpoint_if(test, *_):
    return test
def _pinchpoint_key(container, value):
    return value
def _pinchpoint_drawing(function, *_):
    return function
def _pinchpoint_drawn_item(things, index, *_):
    return things[index]
def _pinchpoint_float(value):
    return float(value)
""",
        "<marks>",
        "exec",
    ),
    _MARKS,
)
MARKS = {name: value for name, value in _MARKS.items() if name.startswith("_pinchpoint")}
