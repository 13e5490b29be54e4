"""A loss or an output is summed or stored together with its graph.

`total += loss` and `losses.append(loss)` keep every tensor that the loss was computed from alive, so that
memory grows with every step. Detach the value first: `loss.detach()` stays on the device, and `loss.item()`
waits for it.

Bad:

    def train(model, batches, optimizer):
        import torch
        total = 0.0
        for batch in batches:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            total += loss
        return total

Good:

    def train(model, batches, optimizer):
        import torch
        total = 0.0
        for batch in batches:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver, root
from pinchpoint.rules.engine.values import is_model_call

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    for loop in source.all(ast.For, ast.While, ast.AsyncFor):
        losses = _backward_names(source, loop) or _evaluated_names(source, loop)
        if not losses:
            continue
        for kept, container in _kept(source, loop):
            if kept.id in losses and not _is_differentiated(source, container, loop):
                yield Match(kept, {"name": kept.id, "container": ast.unparse(container)})


def _backward_names(source: Source, loop: ast.AST) -> set[str]:
    """The names whose `backward()` this loop calls, itself and not an inner one."""
    names = set()
    for call in patterns.method_calls(source, loop, "backward"):
        inner = source.statement_loops(call)
        value = receiver(call)
        if isinstance(value, ast.Call) and method(value) == "scale" and value.args:
            value = value.args[0]  # scaler.scale(loss).backward()
        if isinstance(value, ast.Name) and inner and inner[0] is loop:
            names.add(value.id)
    return names


def _evaluated_names(source: Source, loop: ast.For | ast.While | ast.AsyncFor) -> set[str]:
    """The losses and outputs of a model in a loop over batches, with gradients that nothing uses."""
    scope = source.function(loop) or source.tree
    if not patterns.over_loader(source, loop) or patterns.method_calls(source, scope, "backward"):
        return set()
    return {
        store.id
        for store in source.walk(loop)
        if isinstance(store, ast.Name)
        and isinstance(store.ctx, ast.Store)
        and is_model_call(source, source.assigned_value(store))
        and not patterns.without_gradient(source, store)
        and not any(
            "grad" in source.called(call) for call in source.walk(scope) if isinstance(call, ast.Call)
        )
    }


def _kept(source: Source, loop: ast.AST) -> Iterator[tuple[ast.Name, ast.expr]]:
    """Names that are added to a sum or a list, and the sum or list."""
    for node in source.walk(loop):
        match node:
            case ast.AugAssign(op=ast.Add(), value=value, target=target):
                for name in _names_of_sum(value):
                    yield name, target
            case ast.Call(func=ast.Attribute(attr="append", value=container), args=[ast.Name() as name]):
                yield name, container
            case ast.Assign(
                targets=[ast.Name() as target], value=ast.BinOp(op=ast.Add(), left=left, right=right)
            ):
                if isinstance(left, ast.Name) and left.id == target.id:
                    for name in _names_of_sum(right):
                        yield name, target
            case _:
                pass


def _names_of_sum(value: ast.expr) -> Iterator[ast.Name]:
    """The name in `loss`, `loss * n` and `loss / n`."""
    if isinstance(value, ast.Name):
        yield value
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
        yield from _names_of_sum(value.left)


def _is_differentiated(source: Source, container: ast.expr, loop: ast.AST) -> bool:
    """Whether the sum itself gets a backward pass, is reset in every turn, or is detached afterwards."""
    base = root(container)
    if not isinstance(base, ast.Name):
        return False
    scope = source.scope(loop)
    for call in patterns.method_calls(source, scope, "backward"):
        if base.id in {node.id for node in source.walk(receiver(call)) if isinstance(node, ast.Name)}:
            return True
    fresh = any(
        isinstance(node, ast.Assign)
        and source.inside(node, loop)
        and any(isinstance(target, ast.Name) and target.id == base.id for target in node.targets)
        and base.id not in {n.id for n in source.walk(node.value) if isinstance(n, ast.Name)}
        and not patterns.is_rare(source, node)
        for node in source.walk(loop)
    )
    return fresh and isinstance(container, ast.Name)


def _detach(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    return cst.Call(cst.Attribute(cst.ensure_type(node, cst.Name), cst.Name("detach")))


RULE = Rule(
    number=301,
    name="graph-kept",
    message="`{container}` keeps `{name}` with its graph, so that memory grows with every step.",
    hint="Keep `{name}.detach()`, or `{name}.item()` where a wait does not matter.",
    check=check,
    fix=Fix(_detach, safe=True),
)
