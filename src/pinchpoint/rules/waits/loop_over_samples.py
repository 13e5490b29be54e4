"""A Python loop computes one sample, cell, or row at a time where one call can compute them all.

Each turn launches its own small operations, so that the time is that of Python and not of the device. Use
the batched form of the operation, `torch.vmap`, or `jax.vmap`.

Bad:

    import torch

    def lengths(rows: torch.Tensor):
        values = []
        for i in range(rows.shape[0]):
            values.append(torch.linalg.norm(rows[i]))
        return torch.stack(values)

Good:

    import torch

    def lengths(rows: torch.Tensor):
        return torch.linalg.norm(rows, dim=1)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver
from pinchpoint.rules.engine.values import kind

_TOOLS = ("torch", "jax")
_STACKS = frozenset(
    {"torch.stack", "torch.cat", "jax.numpy.stack", "jax.numpy.array", "jax.numpy.concatenate"}
)


def check(source: Source) -> Iterator[Match]:
    if not source.uses(*_TOOLS):
        return
    for loop in source.all(ast.For):
        counter = loop.target.id if isinstance(loop.target, ast.Name) else ""
        if not counter or not patterns.counts(source, loop) or patterns.is_short(source, loop):
            continue
        if _selects_cells(source, loop, counter) or (
            _is_simple(source, loop, counter) and _computes_rows(source, loop, counter)
        ):
            yield Match(loop, {"rows": ast.unparse(loop.iter)})


def _selects_cells(source: Source, loop: ast.For, counter: str) -> bool:
    """`mask = cells == c` and a mean or sum of `x[mask]`, in a loop of a few statements without branches."""
    if len(loop.body) > 3 or not all(isinstance(step, ast.Assign | ast.Expr | ast.If) for step in loop.body):
        return False
    if any(isinstance(step, ast.If) and (step.orelse or len(step.body) > 1) for step in loop.body):
        return False
    masks = [
        node
        for node in source.walk(loop)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Eq)
        and isinstance(node.comparators[0], ast.Name)
        and node.comparators[0].id == counter
        and kind(source, node.left) not in ("numpy", "python")
    ]
    names = {
        target.id
        for mask in masks
        if isinstance(parent := source.parents[mask], ast.Assign)
        for target in parent.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(node, ast.Call)
        and method(node) in ("mean", "sum", "max", "min", "amax", "amin", "std", "var")
        and isinstance(chosen := receiver(node), ast.Subscript)
        and (chosen.slice in masks or (isinstance(chosen.slice, ast.Name) and chosen.slice.id in names))
        and (source.uses("numpy") is False or kind(source, chosen.value) in ("device", "jax"))
        for node in source.walk(loop)
    )


def _is_simple(source: Source, loop: ast.For, counter: str) -> bool:
    """Whether the body is a few assignments and stores, each turn for itself, and reads nothing but rows."""
    if len(loop.body) > 3 or loop.orelse:
        return False
    if not all(isinstance(step, ast.Assign | ast.Expr) for step in loop.body):
        return False
    carried = {
        name.id
        for name in source.walk(loop)
        if isinstance(name, ast.Name)
        and isinstance(name.ctx, ast.Load)
        and name.id in patterns.stores_in(source, loop) - {counter}
        and not _assigned_before(source, loop, name)
    }
    # The counter is used as the index of rows only: x[i], out[i].
    reads = [n for n in source.loads(loop, counter) if not source.inside(n, loop.iter)]
    rows = all(
        isinstance(source.parents[name], ast.Subscript) and source.parents[name].slice is name  # pyright: ignore[reportAttributeAccessIssue]
        for name in reads
    )
    modules = any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Subscript)
        and source.loads(call.func, counter)
        for call in source.walk(loop)
    )  # another module for every row
    return bool(reads) and rows and not carried and not modules


def _assigned_before(source: Source, loop: ast.For, name: ast.Name) -> bool:
    """Whether a name that the loop assigns gets its value earlier in the same turn."""
    store = source.binding(name)
    return isinstance(store, ast.Name) and source.inside(store, loop) and store.lineno < name.lineno


def _computes_rows(source: Source, loop: ast.For, counter: str) -> bool:
    """Whether rows of a tensor are computed with, and the results are stored row by row."""
    lists = {
        ast.unparse(receiver(step.value))
        for step in loop.body
        if isinstance(step, ast.Expr) and isinstance(step.value, ast.Call) and method(step.value) == "append"
    }
    rows = any(
        isinstance(step, ast.Assign) and isinstance(step.targets[0], ast.Subscript) for step in loop.body
    )
    if not lists and not rows:
        return False
    for node in source.walk(loop):
        if (
            not _is_row(node, counter)
            or not isinstance(node, ast.Subscript)
            or not isinstance(node.ctx, ast.Load)
        ):
            continue
        parent = source.parents[node]
        known = kind(source, node.value)
        computed = isinstance(parent, ast.BinOp) or (isinstance(parent, ast.Call) and node in parent.args)
        if known in ("device", "jax") and computed and method(parent) != "append":
            return True
        function = isinstance(parent, ast.Call) and source.called(parent) not in ("", "float", "int")
        function = function and method(parent) != "append" and not _converts(source, loop)
        if known == "" and function and _is_stacked(source, loop, lists):
            return True
    return False


def _converts(source: Source, loop: ast.For) -> bool:
    """Whether the loop turns results into numbers, which float-per-sample reports."""
    return any(source.called(node) == "float" for node in source.walk(loop) if isinstance(node, ast.Call))


def _is_row(node: ast.AST, counter: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id == counter


def _is_stacked(source: Source, loop: ast.For, lists: set[str]) -> bool:
    """Whether a list that the loop fills becomes one tensor afterwards."""
    return any(
        isinstance(node, ast.Call)
        and source.name(node.func) in _STACKS
        and bool(node.args)
        and ast.unparse(node.args[0]) in lists
        and node.lineno > loop.lineno
        for node in source.walk(source.function(loop) or source.tree)
    )


RULE = Rule(
    number=106,
    name="loop-over-samples",
    message="The loop over `{rows}` computes one row in every turn.",
    hint="Use the batched form of the operation, torch.vmap, or jax.vmap.",
    check=check,
)
