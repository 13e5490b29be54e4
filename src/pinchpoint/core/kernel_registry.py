"""`register_kernel`: describe the memory of a kernel that pinchpoint does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.errors import BadInput


@dataclass(frozen=True)
class RegisteredKernel:
    """What a user said about a kernel; see `register_kernel`."""

    name: str
    outputs: Callable[..., Any] | None
    scratch_bytes: int | Callable[..., int]

    def scratch_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        size = self.scratch_bytes
        return int(size(*args, **kwargs) if callable(size) else size)


# The one registry of a process: a target fills it while it is imported, like torch.library's.
_KERNELS: dict[str, RegisteredKernel] = {}


def register_kernel(
    name: str,
    outputs: Callable[..., Any] | None = None,
    *,
    scratch_bytes: int | Callable[..., int] = 0,
) -> None:
    """Describe a kernel, so that a Forecast of a target that calls it can be definite.

    name: the function name of a Triton kernel, "library::operation" of a torch operation, or
        "package.module.function" of an extension that cannot be imported without CUDA.
    outputs: a function that takes the kernel's arguments and returns tensors of the right shapes. A Triton
        kernel needs none, because it writes to its arguments. Nor does an operation with a shape rule.
    scratch_bytes: device memory that the kernel allocates while it runs, or a function of its arguments.

    Outside a prediction it only stores the description.
    """
    if not name or (outputs is not None and not callable(outputs)):
        raise BadInput(
            f"register_kernel({name!r}, {outputs!r}) needs a name and a function.",
            hint='Use register_kernel("my_kernel", lambda x: torch.empty_like(x), scratch_bytes=0).',
        )
    _KERNELS[name] = RegisteredKernel(name, outputs, scratch_bytes)


def registered_kernel(name: str) -> RegisteredKernel | None:
    return _KERNELS.get(name)
