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
from pinchpoint.rules.engine.source import Source, method
from pinchpoint.rules.engine.values import kind

_TOOLS = ("torch", "jax", "optax")


def check(source: Source) -> Iterator[Match]:
    for loop in source.all(ast.For):
        if not patterns.counts_rows(source, loop) or patterns.is_short(source, loop):
            continue
        counter = loop.target.id if isinstance(loop.target, ast.Name) else ""
        if _is_simple(source, loop, counter) and _computes_rows(source, loop, counter):
            yield Match(loop, {"rows": ast.unparse(loop.iter)})


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
    return bool(reads) and rows and not carried


def _assigned_before(source: Source, loop: ast.For, name: ast.Name) -> bool:
    """Whether a name that the loop assigns gets its value earlier in the same turn."""
    store = source.binding(name)
    return isinstance(store, ast.Name) and source.inside(store, loop) and store.lineno < name.lineno


def _computes_rows(source: Source, loop: ast.For, counter: str) -> bool:
    """Whether a call of torch or JAX takes a row, and its result is stored for the row."""
    stores = any(isinstance(step, ast.Expr) and method(step.value) == "append" for step in loop.body) or any(
        isinstance(step, ast.Assign) and isinstance(step.targets[0], ast.Subscript) for step in loop.body
    )
    if not stores:
        return False
    for call in source.walk(loop):
        if (
            not isinstance(call, ast.Call)
            or method(call) == "append"
            or source.called(call) in ("len", "range")
        ):
            continue
        for arg in call.args:
            if isinstance(arg, ast.Subscript) and isinstance(arg.slice, ast.Name) and arg.slice.id == counter:
                known = kind(source, arg.value)
                framework = source.name(call.func).partition(".")[0] in _TOOLS
                if known in ("device", "jax") and framework:
                    return True
    return False


RULE = Rule(
    number=106,
    name="loop-over-samples",
    message="The loop over `{rows}` computes one row in every turn.",
    hint="Use the batched form of the operation, torch.vmap, or jax.vmap.",
    check=check,
)
