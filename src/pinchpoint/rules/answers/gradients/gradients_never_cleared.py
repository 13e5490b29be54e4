"""A training loop never clears the gradients.

`backward()` adds to the gradients that are there, so that every step uses the sum over all steps so far. Call
`optimizer.zero_grad()` once per step.

Bad:

    import torch

    def train(model, batches):
        optimizer = torch.optim.Adam(model.parameters())
        for batch in batches:
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()

Good:

    import torch

    def train(model, batches):
        optimizer = torch.optim.Adam(model.parameters())
        for batch in batches:
            loss = model(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, receiver
from pinchpoint.rules.engine.values import kind


def check(source: Source) -> Iterator[Match]:
    if "zero_grad" in source.text or ".grad = None" in source.text or ".grad.zero_" in source.text:
        return
    for loop in source.all(ast.For, ast.While):
        backward = [
            call
            for call in patterns.method_calls(source, loop, "backward")
            if source.statement_loops(call)[:1] == [loop]
        ]
        steps = [
            call
            for call in patterns.method_calls(source, loop, "step")
            if kind(source, receiver(call)) == "optimizer"
            and not _is_built_in(source, receiver(call), loop)
            and source.statement_loops(call)[:1] == [loop]
        ]
        if backward and steps:
            yield Match(backward[0])


def _is_built_in(source: Source, optimizer: ast.expr, loop: ast.AST) -> bool:
    """Whether each turn builds its own optimizer, for tensors that have no gradients yet."""
    store = source.binding(optimizer) if isinstance(optimizer, ast.Name) else None
    return isinstance(store, ast.Name) and source.inside(store, loop)


RULE = Rule(
    number=503,
    name="gradients-never-cleared",
    message="The gradients are never cleared: every step adds to those of all earlier steps.",
    hint="Call optimizer.zero_grad() once per step.",
    check=check,
)
