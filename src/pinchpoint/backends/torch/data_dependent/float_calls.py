"""`mark_floats`: let `float(x)` in a script keep an unknown value unknown.

Python's own `float` returns a plain number, so that a branch on it would go one way only, without a word.
"""

from __future__ import annotations

import ast
from typing import Any

from pinchpoint.backends.torch.compat import FakeTensor
from pinchpoint.backends.torch.data_dependent.unknown_values import DataFloat, DataNumber

FLOAT = "_pinchpoint_float"


def mark_floats(tree: ast.Module) -> ast.Module:
    return ast.fix_missing_locations(_Marker().visit(tree))


class _Marker(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        is_float = isinstance(node.func, ast.Name) and node.func.id == "float" and not node.keywords
        if is_float and len(node.args) == 1 and not isinstance(node.args[0], (ast.Constant, ast.Starred)):
            node.func = ast.copy_location(ast.Name(FLOAT, ast.Load()), node.func)
        return node


def to_float(value: Any) -> float:
    """What `float(value)` gives; a number of the device that is unknown stays so."""
    if type(value) is FakeTensor and value.numel() == 1:
        value = value.item()
    if isinstance(value, DataNumber):
        value = value * 1.0
    return value if type(value) is DataFloat else float(value)
