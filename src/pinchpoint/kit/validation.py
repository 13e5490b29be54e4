"""What a user hands in, refused where it is of another kind than a building block reads, before anything is computed."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, nn

from pinchpoint.core.errors import BadInput


def require_tensor(name: str, value: object) -> None:
    """Numpy arrays and lists are not taken silently: which device and dtype they are meant for is the caller's to say."""
    if not isinstance(value, Tensor):
        raise BadInput(
            f"{name} is {_kind(value)}, not a tensor", hint=f"give a torch tensor: torch.as_tensor({name})"
        )


def require_module(name: str, value: object, *, reads: str) -> None:
    """Weights of a plain function could not be found, and so not trained."""
    if isinstance(value, nn.Module):
        return
    if isinstance(value, type) and issubclass(value, nn.Module):
        raise BadInput(
            f"{name} is the class {value.__name__}, not a module",
            hint=f"make one of it first: {value.__name__}(...)",
        )
    raise BadInput(
        f"{name} is {_kind(value)}, not a torch.nn.Module",
        hint=f"give a module that maps {reads}: a function goes into the forward of an nn.Module of your own",
    )


def whole_number(value: Any) -> int | None:
    """An int, of numpy's too; None for anything else, True and False among it."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _kind(value: object) -> str:
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    if value is None:
        return "None"
    module = type(value).__module__
    name = type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"
    return f"a {name}"
