"""Errors of operations: which are the user's own, and what the others say."""

from __future__ import annotations

import re
from typing import Any

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.ledger import Site
from pinchpoint.core import failures
from pinchpoint.core.errors import CannotFake, first_line

_PRODUCT = re.compile(r"same reduction dim, but got \[(\d+, \d+)\] X \[(\d+, \d+)\]")


def no_shape_rule(func: Any, site: Site, error: BaseException) -> CannotFake:
    """The error for an operation that fake tensors cannot run."""
    return CannotFake(
        f"{func.name()!r} at {site.file}:{site.line} is not supported by pinchpoint yet, "
        f"because torch has no shape rule for it: {first_line(error, length=200)}",
        hint="Register a shape rule with torch.library.register_fake, describe the operation with "
        "pinchpoint.register_kernel, or predict the step without it.",
    )


def sparse_output(op: str, site: Site) -> CannotFake:
    return CannotFake(
        f"{op!r} at {site.file}:{site.line} creates a sparse tensor, which pinchpoint does not support yet.",
        hint="Predict it with dense tensors (Embedding: sparse=False): what fits dense also fits sparse "
        "if gradients have few rows.",
    )


def is_missing_on_host(error: BaseException) -> bool:
    """Whether only the host lacks a kernel for these types: its shape rules refuse what a GPU can do.

    The rule for grouped products knows only bf16, but CUDA multiplies other types group by group.
    """
    text = str(error)
    return any(part in text for part in ("not implemented for", "_cpu", "Expected inputs of BF16 type"))


def is_users_mistake(error: BaseException) -> bool:
    """Whether the error is the user's own shape or type error, which a real device would raise too."""
    return (
        isinstance(error, (RuntimeError, TypeError))
        and not isinstance(error, NotImplementedError)
        and not compat.is_fake_mode_error(error)
        and not failures.says_simulation(error)
    )


def as_on_gpu(error: Exception, *, is_certain: bool) -> Exception:
    """The error of a shape rule in the words of the kernel that users know."""
    if (match := _PRODUCT.search(str(error))) is not None:
        first, second = (part.replace(", ", "x") for part in match.groups())
        error = RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({first} and {second})")
    setattr(error, failures.SAME_ON_GPU, is_certain)
    return error
