"""A function processes its points in chunks of a fixed size.

The size that fits depends on the card, the model, and the precision: too large runs out of memory, too
small leaves the device idle. Make it a parameter; `pinchpoint plan` finds the size for a budget, and
`pinchpoint.stream` chooses it.

Bad:

    import torch

    def predict(model, points):
        batch_size = 3000
        outputs = []
        with torch.no_grad():
            for start in range(0, len(points), batch_size):
                outputs.append(model(points[start : start + batch_size]))
        return torch.cat(outputs)

Good:

    import torch

    def predict(model, points, batch_size=3000):
        outputs = []
        with torch.no_grad():
            for start in range(0, len(points), batch_size):
                outputs.append(model(points[start : start + batch_size]))
        return torch.cat(outputs)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method
from pinchpoint.rules.engine.values import kind

_LEAST = 16  # smaller numbers are structure: heads, channels, windows


def check(source: Source) -> Iterator[Match]:
    if not source.uses("torch", "jax"):
        return
    for loop in source.all(ast.For):
        if (
            source.called(loop.iter) == "range"
            and isinstance(loop.iter, ast.Call)
            and len(loop.iter.args) == 3
        ):
            _, stop, step = loop.iter.args
            size = _size(source, step)
            if size is not None and not isinstance(stop, ast.Constant) and _computes(source, loop):
                yield Match(size, {"size": ast.unparse(size)})
    for call in source.calls:
        if method(call) == "split" and call.args and isinstance(call.func, ast.Attribute):
            size = _size(source, call.args[0])
            looped = isinstance(source.parents[call], ast.For)
            if size is not None and looped and kind(source, call.func.value) in ("device", "jax"):
                yield Match(size, {"size": ast.unparse(size)})


def _size(source: Source, node: ast.expr) -> ast.expr | None:
    """The number in the code that a step is, directly or through a local name of the same function."""
    function = source.function(node)
    if function is None or function.name in ("main", "__init__") or function.name.startswith("test"):
        return None
    if isinstance(node, ast.Name):
        store = source.binding(node)
        value = source.assigned_value(store) if isinstance(store, ast.Name) else None
        if value is None or source.function(value) is not function:
            return None
        node = value
    number = node.value if isinstance(node, ast.Constant) else None
    return node if isinstance(number, int) and not isinstance(number, bool) and number >= _LEAST else None


def _computes(source: Source, loop: ast.For) -> bool:
    """Whether the loop calls something with the slice of a chunk: `f(x[i : i + n])`."""
    names = patterns.loop_names(source, loop)
    for node in source.walk(loop):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Slice)
            and node.slice.lower is not None
        ):
            lower = {n.id for n in source.walk(node.slice.lower) if isinstance(n, ast.Name)}
            if lower & names and kind(source, node.value) not in ("python", "numpy"):
                return True
    return False


RULE = Rule(
    number=307,
    name="hard-coded-chunk",
    message="The chunk size {size} is fixed in the code, whatever the card can hold.",
    hint="Make it a parameter; pinchpoint plan finds the largest size that fits a budget.",
    check=check,
)
