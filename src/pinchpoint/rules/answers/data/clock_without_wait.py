"""A clock is read around work on the device without waiting for it.

Calls to the device return at once: the difference of two clock readings is the time to launch the work, not
to do it. Wait before both readings with `torch.cuda.synchronize()` or `jax.block_until_ready`.

Bad:

    import time
    import torch

    def seconds(model, batch):
        batch = batch.to("cuda" if torch.cuda.is_available() else "cpu")
        start = time.perf_counter()
        model(batch)
        return time.perf_counter() - start

Good:

    import time
    import torch

    def seconds(model, batch):
        batch = batch.to("cuda" if torch.cuda.is_available() else "cpu")
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(batch)
        torch.cuda.synchronize()
        return time.perf_counter() - start
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import FUNCTIONS, Source, method
from pinchpoint.rules.engine.values import is_model_call

_CLOCKS = frozenset(
    {"time.time", "time.perf_counter", "time.monotonic", "time.perf_counter_ns", "timeit.default_timer"}
)
_WAITS = ("item", "cpu", "numpy", "tolist", "block_until_ready", "elapsed_time", "wait", "result", "join")


def check(source: Source) -> Iterator[Match]:
    if "cuda" not in source.text and not source.uses("jax"):
        return
    for difference in source.all(ast.BinOp):
        if not isinstance(difference.op, ast.Sub):
            continue
        end, store = _reading(source, difference.left), _reading(source, difference.right)
        if end is None or not isinstance(store, ast.Name):
            continue
        scope = source.function(difference) or source.tree
        between = [
            node
            for node in source.walk(scope)
            if isinstance(node, ast.Call) and store.lineno < node.lineno <= end.lineno
        ]
        measured = [node for node in between if is_model_call(source, node)]
        if (
            measured
            and not any(_waits(source, node) for node in between)
            and not _is_nested(source, store, scope)
        ):
            yield Match(difference)


def _reading(source: Source, node: ast.expr) -> ast.Name | ast.Call | None:
    """Where a clock is read: the call itself, or the name that holds its value."""
    if isinstance(node, ast.Call) and source.called(node) in _CLOCKS:
        return node
    store = source.binding(node) if isinstance(node, ast.Name) else None
    value = source.assigned_value(store) if isinstance(store, ast.Name) else None
    return store if isinstance(store, ast.Name) and source.called(value) in _CLOCKS else None


def _waits(source: Source, call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if method(call) in _WAITS or re.search(r"sync|block_until_ready|barrier", name):
        return True
    return source.name(call.func) in ("float", "int", "print")


def _is_nested(source: Source, store: ast.Name, scope: ast.AST) -> bool:
    """Whether the clock was read in another function than the difference."""
    function = source.function(store)
    return function is not scope if isinstance(scope, FUNCTIONS) else function is not None


RULE = Rule(
    number=537,
    name="clock-without-wait",
    message="The clock is read before the device has finished the work that is measured.",
    hint="Call torch.cuda.synchronize() or jax.block_until_ready before both readings.",
    check=check,
)
