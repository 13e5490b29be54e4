"""`mark_lookups`: let `schedule.get(step)` and `step in {1000, 1500}` ask whether a counter equals each key.

A lookup compares a number only with keys of the same hash, so that no condition would be recorded otherwise.
"""

from __future__ import annotations

import ast
import copy
import operator
import sys
from typing import Any

from pinchpoint.backends.torch.loops.counters import Counter, Step

KEY = "_pinchpoint_key"
_KEYS = 16  # of a container that is looked at


def mark_lookups(tree: ast.Module) -> ast.Module:
    return ast.fix_missing_locations(_Marker().visit(tree))


class _Marker(ast.NodeTransformer):
    def __init__(self) -> None:
        self._marked: set[int] = set()  # a condition is also part of the function that evaluates it

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        is_get = isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args
        if is_get and isinstance(node.func, ast.Attribute) and not isinstance(node.args[0], ast.Starred):
            node.args[0] = self._key(node, node.func.value, node.args[0])
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            node.left = self._key(node, node.comparators[0], node.left)
        return node

    def _key(self, node: ast.expr, container: ast.expr, key: ast.expr) -> ast.expr:
        parts = list(ast.walk(container))
        is_plain = all(
            isinstance(part, (ast.Name, ast.Attribute, ast.Set, ast.Constant, ast.expr_context))
            for part in parts
        )
        if not is_plain or isinstance(key, ast.Constant) or id(node) in self._marked:
            return key
        self._marked.add(id(node))
        call = ast.Call(ast.Name(KEY, ast.Load()), [copy.deepcopy(container), key], [])
        return ast.copy_location(call, key)


def key(container: Any, value: Any) -> Any:
    """Record whether a counter equals each key of a container; returns it."""
    if type(value) is Counter and isinstance(container, (dict, set, frozenset)) and len(container) <= _KEYS:
        count = value.count
        for one in container if value.version == count.version else ():
            if type(one) is int:
                steps = (*value.steps, Step(operator.eq, one))
                count.record(steps, int(value) == one, sys._getframe(1))
    return value
