"""`float(x)` and `int(x)` in a script keep track of values that nobody computed.

Python insists that `float()` returns a plain float, and a branch on it would go unnoticed. So these calls in
the script's own file are replaced by functions that return numbers which remember that they are unknown.
"""

from __future__ import annotations

import ast
import builtins
from typing import Any

from pinchpoint.backends.jax.script.arrays import ScriptArray
from pinchpoint.backends.patches import Patches

_NAMES = {"float": "_pinchpoint_float", "int": "_pinchpoint_int"}


def track_number_calls(tree: ast.Module) -> ast.Module:
    """Replace `float(x)` and `int(x)`, unless the file gives these names a meaning of its own."""
    own = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _NAMES.keys() - own
            and len(node.args) == 1
            and not node.keywords
        ):
            node.func.id = _NAMES[node.func.id]
    return tree


def add_number_calls(patches: Patches) -> None:
    """Define the functions that the replaced calls use."""
    patches.set(builtins, _NAMES["float"], _float)
    patches.set(builtins, _NAMES["int"], _int)


def _float(value: Any) -> Any:
    if not isinstance(value, ScriptArray):
        return float(value)
    number = value.item()
    return float(number) if isinstance(number, (bool, int)) else number


def _int(value: Any) -> Any:
    return value.item() if isinstance(value, ScriptArray) and value.dtype.kind in "iu" else int(value)
