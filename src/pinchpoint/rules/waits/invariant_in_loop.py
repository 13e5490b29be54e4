"""A loop sorts, groups, or counts the same tensor in every turn.

`torch.unique`, `bincount`, `argsort`, and the like take long, and several of them wait for the device.
Where their input does not change in the loop, compute them once before it.

Bad:

    import torch

    def train(model, cells, batches, optimizer):
        for batch in batches:
            counts = torch.bincount(cells)
            optimizer.zero_grad()
            model(batch, counts).mean().backward()
            optimizer.step()

Good:

    import torch

    def train(model, cells, batches, optimizer):
        counts = torch.bincount(cells)
        for batch in batches:
            optimizer.zero_grad()
            model(batch, counts).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_NAMES = frozenset(
    f"{package}.{name}"
    for package in ("torch", "jax.numpy")
    for name in (
        "unique",
        "unique_consecutive",
        "bincount",
        "argsort",
        "sort",
        "searchsorted",
        "cdist",
        "histc",
    )
)


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) not in _NAMES:
            continue
        loops = [loop for loop in source.statement_loops(call) if not patterns.is_short(source, loop)]
        if loops and any(
            isinstance(p, ast.If) and source.inside(p, loops[0]) for p in source.ancestors(call)
        ):
            continue  # one of several cases, which few turns may take
        if not loops or patterns.is_rare(source, call) or not _is_invariant(source, call, loops[0]):
            continue
        yield Match(call, {"code": patterns.shorten(call)})


def _is_invariant(source: Source, call: ast.Call, loop: ast.AST) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    nodes = [node for value in values for node in source.walk(value)]
    if any(not isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Tuple) for node in nodes):
        return False
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    if not names or "self" in names:
        return False
    changed = patterns.stores_in(source, loop)
    changed |= {n.value.id for n in source.walk(loop) if _is_store_into(n)}  # pyright: ignore[reportAttributeAccessIssue]
    return not names & changed and not _is_method_changed(source, loop, names)


def _is_store_into(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Subscript | ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
    )


def _is_method_changed(source: Source, loop: ast.AST, names: set[str]) -> bool:
    """Whether the loop calls a method that changes one of the names in place: `x.add_(1)`, `x.append(y)`."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in names
        and (node.func.attr.endswith("_") or node.func.attr in ("append", "extend", "update"))
        for node in source.walk(loop)
    )


RULE = Rule(
    number=108,
    name="invariant-in-loop",
    message="`{code}` computes the same in every turn of the loop.",
    hint="Compute it once before the loop.",
    check=check,
)
