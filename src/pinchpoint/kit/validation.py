"""Checks of argument types that the building blocks share, made before anything is computed."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, nn

from pinchpoint.core.errors import BadInput


def require_tensor(name: str, value: object, *, hint: str = "Give a torch tensor.") -> None:
    """Refuse NumPy arrays and lists: only the caller knows the intended device and dtype.

    hint: for a value that torch cannot convert to a tensor.
    """
    if not isinstance(value, Tensor):
        converts = isinstance(value, list | tuple | int | float) or hasattr(value, "__array__")
        raise BadInput(
            f"`{name}` is {_kind(value)}, not a tensor.",
            hint=f"Give a torch tensor: torch.as_tensor({name})." if converts else hint,
        )


def require_module(name: str, value: object, *, reads: str) -> None:
    """Refuse a plain function, whose weights could not be found and therefore not be trained."""
    if isinstance(value, nn.Module):
        return
    if isinstance(value, type) and issubclass(value, nn.Module):
        raise BadInput(
            f"`{name}` is the class {value.__name__}, not a module.",
            hint=f"Create an instance first: {value.__name__}(...).",
        )
    raise BadInput(
        f"`{name}` is {_kind(value)}, not a torch.nn.Module.",
        hint=f"Give a module that maps {reads}; call your function in the forward of your own nn.Module.",
    )


def whole_number(value: Any) -> int | None:
    """The value as an int (NumPy integers count), or None for anything else, including True and False."""
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
