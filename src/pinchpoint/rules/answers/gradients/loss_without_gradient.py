"""A part of the loss is computed under no_grad.

It changes the value that is printed, but not the gradient: nothing is trained by it. Compute it outside the
context.

Bad:

    import torch
    import torch.nn.functional as F

    def train(model, pairs, optimizer):
        for dense, sparse in pairs:
            features = model(dense)
            with torch.no_grad():
                consistency = F.mse_loss(model(sparse), features)
            loss = features.square().mean() + consistency
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

Good:

    import torch
    import torch.nn.functional as F

    def train(model, pairs, optimizer):
        for dense, sparse in pairs:
            features = model(dense)
            consistency = F.mse_loss(model(sparse), features.detach())
            loss = features.square().mean() + consistency
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver


def check(source: Source) -> Iterator[Match]:
    for backward in source.calls:
        if method(backward) != "backward":
            continue
        for term in _all_terms(source, receiver(backward)):
            computed = _assigned(source, term)
            if computed is not None and _is_loss(computed) and patterns.without_gradient(source, computed):
                yield Match(computed, {"name": term.id})


def _all_terms(source: Source, loss: ast.expr) -> Iterator[ast.Name]:
    """The names that a loss is the sum of, in its assignment and in `loss += term` after it."""
    if isinstance(loss, ast.Call) and method(loss) == "scale" and loss.args:
        loss = loss.args[0]  # scaler.scale(loss).backward()
    if not isinstance(loss, ast.Name):
        if not patterns.without_gradient(source, loss):
            yield from _terms(loss)
        return
    stores = source.stores.get((source.scope(loss), loss.id), [])
    for store in reversed([store for store in stores if store.lineno < loss.lineno]):
        parent = source.parents[store]
        value = parent.value if isinstance(parent, ast.AugAssign) else source.assigned_value(store)
        if value is not None and not patterns.without_gradient(source, value):
            yield from _terms(value)
        if not isinstance(parent, ast.AugAssign):
            return


def _assigned(source: Source, name: ast.Name) -> ast.expr | None:
    store = source.binding(name)
    return source.assigned_value(store) if isinstance(store, ast.Name) else None


def _terms(value: ast.expr) -> Iterator[ast.Name]:
    """The names that are added up in a loss; factors are weights and may be constants."""
    if isinstance(value, ast.Name):
        yield value
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        yield from _terms(value.left)
        yield from _terms(value.right)
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for side in (value.left, value.right):
            if isinstance(side, ast.Name) and "loss" in side.id:
                yield side


def _is_loss(value: ast.expr) -> bool:
    return isinstance(value, ast.Call | ast.BinOp) and not isinstance(value, ast.Constant)


RULE = Rule(
    number=502,
    name="loss-without-gradient",
    message="`{name}` is a part of the loss but is computed under no_grad, so that it trains nothing.",
    hint="Compute it outside the no_grad context, and detach only the target.",
    check=check,
)
