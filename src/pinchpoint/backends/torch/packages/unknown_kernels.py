"""Kernels that pinchpoint does not know: each is named, with the way to register it.

A name of a stand-in that is not modelled can be imported, but using it is an error, because its outputs are
unknown. A kernel whose outputs are known but not its own memory runs, and makes `fits` unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.utils.cpp_extension

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import FakeTensor, tree_leaves
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.errors import CannotFake
from pinchpoint.core.files import shown_path
from pinchpoint.core.kernel_registry import RegisteredKernel, registered_kernel


def install(patches: Patches, observer: Observer) -> None:
    """Answer for extensions that are compiled at run time and operations of libraries that are absent."""

    def load(name: str, *args: Any, **kwargs: Any) -> Any:
        return _Extension(name, observer)

    patches.set(torch.utils.cpp_extension, "load", load)
    patches.set(torch.utils.cpp_extension, "load_inline", load)
    original_load: Callable[[Any], None] = torch.ops.load_library
    failed: list[str] = []  # libraries that could not be loaded, so that any operation may be theirs

    def load_library(path: Any) -> None:
        try:
            original_load(path)
        except OSError:  # it is linked with CUDA, or was compiled on another machine
            failed.append(str(path))
            observer.note(f"{Path(str(path)).name} cannot be loaded without CUDA")

    def missing(library: str, name: str) -> Any:
        full = f"{library}::{name}"
        return unmodelled_name(full, observer) if failed or registered_kernel(full) else None

    if hasattr(torch.library, "wrap_triton"):  # for compilers; a launch is recorded either way
        patches.set(torch.library, "wrap_triton", lambda kernel: kernel)
    patches.set(torch.ops, "load_library", load_library)
    _set_missing_operation(patches, missing)
    observer.foreign = _Foreign(observer)


def _set_missing_operation(patches: Patches, find: Callable[[str, str], Any | None]) -> None:
    """Ask `find(library, operation)` for operations that torch.ops does not have; None: there is none."""
    namespace = type(torch.ops.aten)
    original = namespace.__getattr__

    def get(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            operation = None if name.startswith("_") else find(self.name, name)
            if operation is None:
                raise
            return operation

    patches.set(namespace, "__getattr__", get)


# Libraries and operations that allocate nothing but their outputs, by their source: causal-conv1d, and the
# kernel of optimum-quanto that unpacks codes of 2 and 4 bits.
_WITHOUT_SCRATCH = ("DaoAILab", "quanto::unpack")
_IN_PYTHON = ("quanto",)  # libraries whose other operations are functions of Python


class _Foreign:
    """Operations of libraries other than torch: their outputs are known, their own memory is not."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def rule(self, func: Any) -> Any:
        """What computes the shapes of the outputs: a registered function, or the operation's own rule."""
        kernel = registered_kernel(func.name()) or registered_kernel(func.name().partition(".")[0])
        return func if kernel is None or kernel.outputs is None else kernel.outputs

    def body(self, func: Any) -> Any:
        """The function of Python that an operation of a known library is; None: it is a kernel."""
        name = func.name()
        is_kernel = name.partition("::")[0] not in _IN_PYTHON or name.partition(".")[0] in _WITHOUT_SCRATCH
        return None if is_kernel or registered_kernel(name.partition(".")[0]) else compat.body_on_cuda(func)

    def ran(self, func: Any, args: Any, kwargs: Any) -> None:
        """Record the scratch memory of an operation that just ran; unknown memory is a reason."""
        name = func.name()
        kernel = registered_kernel(name) or registered_kernel(name.partition(".")[0])
        if kernel is not None:
            with _Scratch(self._observer, kernel, args, kwargs):
                return
        if name.partition("::")[0] in _WITHOUT_SCRATCH or name.partition(".")[0] in _WITHOUT_SCRATCH:
            return
        what = (
            "an operation that pinchpoint does not know: memory that it uses besides its outputs is not "
            f'counted; register it with pinchpoint.register_kernel("{name}", scratch_bytes=...)'
        )
        self._observer.notes.say(name, what, self._observer.ledger.site(), is_reason=True)


class _Extension:
    """Stands for the module of a compiled extension."""

    def __init__(self, name: str, observer: Observer) -> None:
        self.__name__ = name
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return unmodelled_name(f"{self.__name__}.{name}", self._observer)


def unmodelled_name(name: str, observer: Observer, *, install: str = "") -> Any:
    """What a name that is not modelled is: the function that the user registered, or a class to refuse.

    install: how to install the package's own Python, which then runs.
    """
    kernel = registered_kernel(name)
    if kernel is not None:
        return lambda *args, **kwargs: run_registered(observer, kernel, args, kwargs)
    attributes = {"full_name": name, "observer": observer, "install": install}
    return _Unmodelled(name.rpartition(".")[2] or name, (), attributes)


def run_registered(observer: Observer, kernel: RegisteredKernel, args: Any, kwargs: Any) -> Any:
    """Run a registered kernel: its scratch memory exists while its outputs are allocated."""
    if kernel.outputs is None:
        raise CannotFake(
            f"The kernel {kernel.name!r} is registered without its outputs, which are not known.",
            hint="Register it with a function that takes its arguments and returns the outputs.",
        )
    with _Scratch(observer, kernel, args, kwargs):
        outputs = kernel.outputs(*args, **kwargs)
    forget(observer, outputs)
    return outputs


class _Scratch:
    """Temporary memory of a kernel while this context is active."""

    def __init__(self, observer: Observer, kernel: RegisteredKernel, args: Any, kwargs: Any) -> None:
        self._observer, self._name = observer, kernel.name
        self._bytes = kernel.scratch_of(args, kwargs)

    def __enter__(self) -> None:
        ledger = self._observer.ledger
        self._block = (
            ledger.add_temporary(
                self._bytes, phase=ledger.phase or "forward", site=ledger.site(), op=self._name
            )
            if self._bytes
            else None
        )

    def __exit__(self, *_: object) -> None:
        if self._block is not None:
            self._observer.ledger.free_temporary(self._block)


def launched(observer: Observer, name: str, args: Sequence[Any], written: Sequence[Any]) -> None:
    """Record that a kernel ran which writes to its arguments; unless it is registered, that is a reason."""
    overwritten(observer, written)
    kernel = registered_kernel(name)
    if kernel is not None:
        with _Scratch(observer, kernel, tuple(args), {}):
            return
    what = (
        "a Triton kernel that pinchpoint does not know: memory that it uses besides its arguments is "
        f'not counted; register it with pinchpoint.register_kernel("{name}", scratch_bytes=...)'
    )
    observer.notes.say(name, what, observer.ledger.site(), is_reason=True)


def forget(observer: Observer, tensors: Any) -> None:
    """Mark the values of new device tensors as unknown."""
    observer.shadows.forget(*[t for t in tree_leaves(tensors) if type(t) is FakeTensor])


def overwritten(observer: Observer, tensors: Any) -> None:
    """Mark the values of tensors that a kernel wrote to as unknown, also in the tensors they are views of."""
    observer.shadows.lose(*[t for t in tree_leaves(tensors) if type(t) is FakeTensor])


class _Unmodelled(type):
    """The class of every name that is not modelled: it can be imported and subclassed, but not used."""

    full_name: str
    observer: Observer
    install: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        site = cls.observer.ledger.site()
        first = (
            f"Install the package's Python, which then runs ({cls.install}), or describe"
            if cls.install
            else "Describe"
        )
        raise CannotFake(
            f"{cls.full_name!r} at {shown_path(f'{site.file}:{site.line}')} is a kernel that pinchpoint does "
            "not know, so the shapes of its outputs are unknown.",
            hint=f'{first} it with pinchpoint.register_kernel("{cls.full_name}", outputs), where outputs '
            "takes its arguments and returns its results.",
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return unmodelled_name(f"{cls.full_name}.{name}", cls.observer, install=cls.install)
