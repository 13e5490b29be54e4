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
from pinchpoint.rules.engine.loaders import loaders, option
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import COMPREHENSIONS, Loop, Source, method
from pinchpoint.rules.engine.values import kind

_LEAST = 16  # smaller numbers are structure: heads, channels, windows
_LEAST_POINTS = 512  # for a loader; smaller numbers are the batches of a training, a matter of its results


def check(source: Source) -> Iterator[Match]:
    if not source.uses("torch", "jax"):
        return
    for loop in source.all(ast.For, *COMPREHENSIONS):
        rows = patterns.iterable(loop)
        if not isinstance(rows, ast.Call) or source.called(rows) != "range" or len(rows.args) != 3:
            continue
        size = _size(source, rows.args[2])
        if size is not None and not isinstance(rows.args[1], ast.Constant) and _computes(source, loop):
            yield Match(size, {"size": ast.unparse(size)})
    for call in loaders(source):
        size = option(call, "batch_size")
        size = _size(source, size) if size is not None else None
        if size is not None and _number(size) >= _LEAST_POINTS:
            yield Match(size, {"size": ast.unparse(size)})
    for call in source.calls:
        size = None
        if source.name(call.func) == "torch.split" and len(call.args) == 2 and not call.keywords:
            size = _size(source, call.args[1])
        elif method(call) == "split" and len(call.args) == 1 and not call.keywords:
            tensor = kind(source, call.func.value) in ("device", "jax")  # pyright: ignore[reportAttributeAccessIssue]
            size = _size(source, call.args[0]) if tensor else None
        if size is not None and _is_passed_on(source, call):
            yield Match(size, {"size": ast.unparse(size)})


def _is_passed_on(source: Source, split: ast.Call) -> bool:
    """Whether a loop goes over the parts and calls something with each."""
    loop = source.parents[split]
    if isinstance(loop, ast.comprehension):
        target, body = loop.target, source.parents[loop]
    elif isinstance(loop, ast.For):
        target, body = loop.target, loop
    else:
        return False
    return isinstance(target, ast.Name) and any(
        isinstance(node, ast.Call)
        and any(isinstance(arg, ast.Name) and arg.id == target.id for arg in node.args)
        and method(node) != "append"
        for node in source.walk(body)
    )


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
    return node if _number(node) >= _LEAST else None


def _number(node: ast.expr) -> int:
    """The value of a number in the code such as `1024 * 32`; 0 for anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _number(node.left) * _number(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
        return _LEAST if _number(node.left) and _number(node.right) > 3 else 0
    number = node.value if isinstance(node, ast.Constant) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def _computes(source: Source, loop: Loop) -> bool:
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
