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
from pinchpoint.rules.engine.source import (
    FUNCTIONS,
    Function,
    Source,
    argument,
    is_constant,
    method,
    receiver,
    root,
)
from pinchpoint.rules.engine.values import is_model_call

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    for loop in source.all(ast.For, ast.While, ast.AsyncFor):
        trained = _backward_calls(source, loop)
        losses = set(trained) or _evaluated_names(source, loop)
        for kept, container in _kept(source, loop) if losses else ():
            if kept.id not in losses or _is_differentiated(source, container, loop):
                continue
            calls = trained.get(kept.id, [])
            if any(_is_computed_between(source, loop, call, kept) for call in calls):
                continue
            is_safe = not any(map(_retains, calls)) if calls else not _escapes(source, container, loop)
            yield Match(kept, {"name": kept.id, "container": ast.unparse(container)}, fixable=is_safe)


def _backward_calls(source: Source, loop: ast.AST) -> dict[str, list[ast.Call]]:
    """The names whose `backward()` this loop calls, itself and not an inner one, and these calls."""
    calls: dict[str, list[ast.Call]] = {}
    for call in patterns.method_calls(source, loop, "backward"):
        inner = source.statement_loops(call)
        value = receiver(call)
        if isinstance(value, ast.Call) and method(value) == "scale" and value.args:
            value = value.args[0]  # scaler.scale(loss).backward()
        if isinstance(value, ast.Name) and inner and inner[0] is loop:
            calls.setdefault(value.id, []).append(call)
    return calls


def _is_computed_between(source: Source, loop: ast.AST, backward: ast.Call, kept: ast.Name) -> bool:
    """Whether a name gets another value, with a graph that is not used yet, after its backward pass."""
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id == kept.id
        and backward.lineno < node.lineno <= kept.lineno
        for node in source.walk(loop)
    )


def _retains(backward: ast.Call) -> bool:
    """Whether a graph can be differentiated once more after its backward pass."""
    values = [argument(backward, name) for name in ("retain_graph", "create_graph")]
    return any(value is not None and not is_constant(value, False) for value in values)


def _escapes(source: Source, container: ast.expr, loop: ast.AST) -> bool:
    """Whether a caller gets what is kept, and may differentiate it. An evaluation's caller does not."""
    function, base = source.function(loop), root(container)
    if function is None or patterns.is_evaluation(function):
        return False
    if not isinstance(container, ast.Name) or not isinstance(base, ast.Name):
        return True
    return any(
        isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)
        and base.id in {each.id for each in source.walk(node) if isinstance(each, ast.Name)}
        for node in source.walk(function)
    )


def _evaluated_names(source: Source, loop: ast.For | ast.While | ast.AsyncFor) -> set[str]:
    """The losses and outputs of a model in a loop over batches, with gradients that nothing uses."""
    scope = source.function(loop) or source.tree
    if not patterns.over_loader(source, loop) or patterns.method_calls(source, scope, "backward"):
        return set()
    if isinstance(scope, FUNCTIONS) and _is_called_in_training(source, scope):
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


def _is_called_in_training(source: Source, function: Function) -> bool:
    """Whether the file calls a function where it differentiates something: its result may be that."""
    return not patterns.is_evaluation(function) and any(
        source.name(call.func).rpartition(".")[2] == function.name
        and _differentiated_values(source, source.function(call) or source.tree)
        for call in source.calls
    )


def _kept(source: Source, loop: ast.AST) -> Iterator[tuple[ast.Name, ast.expr]]:
    """Names that are added to a sum or a list, and the sum or list."""
    for node in source.walk(loop):
        match node:
            case ast.AugAssign(op=ast.Add(), value=value, target=target):
                for name in _names_of_sum(value):
                    yield name, target
            case ast.Call(func=ast.Attribute(attr="append", value=container), args=[value]):
                for item in value.elts if isinstance(value, ast.Tuple | ast.List) else [value]:
                    if isinstance(item, ast.Name):
                        yield item, container
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
    for value in _differentiated_values(source, source.scope(loop)):
        # In the loop itself the loss is computed; after it, something may be computed from the sum.
        where = loop if source.inside(value, loop) else source.scope(loop)
        if _variable(container) in _names_behind(source, value, where):
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


def _differentiated_values(source: Source, scope: ast.AST) -> list[ast.expr]:
    """What has a backward pass in a scope, or is given to torch.autograd."""
    values: list[ast.expr] = []
    for call in source.walk(scope):
        if isinstance(call, ast.Call) and source.called(call).startswith("torch.autograd."):
            values += call.args[:1]
        elif isinstance(call, ast.Call) and method(call) == "backward":
            value = receiver(call)
            values += [value] if value is not None else []
    return values


def _variable(node: ast.AST) -> str:
    """`losses` of `losses` and `losses[0]`, `self.losses` of `self.losses`; empty for what is no variable."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return node.id if isinstance(node, ast.Name) and node.id != "self" else ""


def _names_behind(source: Source, value: ast.expr, where: ast.AST) -> set[str]:
    """The names in an expression, and those that they are assigned from."""
    names: set[str] = set()
    waiting: list[ast.AST] = [value]
    assignments = [node for node in source.walk(where) if isinstance(node, ast.Assign | ast.AugAssign)]
    while waiting:
        new = set(map(_variable, source.walk(waiting.pop()))) - names - {""}
        names |= new
        for node in assignments:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id in new for target in targets):
                waiting.append(node.value)
    return names


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
