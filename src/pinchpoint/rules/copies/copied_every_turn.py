"""A loop copies the same tensor to the device in every turn.

What does not change in the loop can be copied once before it. Each copy takes time on the bus, and from
ordinary memory the host waits for it.

Bad:

    import torch

    def train(model, batches, optimizer, weights, device):
        for batch in batches:
            optimizer.zero_grad()
            (model(batch) * weights.to(device)).mean().backward()
            optimizer.step()

Good:

    import torch

    def train(model, batches, optimizer, weights, device):
        weights = weights.to(device)
        for batch in batches:
            optimizer.zero_grad()
            (model(batch) * weights).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver
from pinchpoint.rules.engine.values import is_module, kind


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        device = device_argument(source, call) if method(call) in ("to", "cuda") else None
        if device is None or is_host(device) or isinstance(source.parents[call], ast.Expr):
            continue
        value = receiver(call)
        loops = [loop for loop in source.statement_loops(call) if not patterns.is_short(source, loop)]
        if not isinstance(value, ast.Name) or not loops or patterns.is_rare(source, call):
            continue
        if is_module(source, value) or kind(source, value) == "device":
            continue
        changed = patterns.stores_in(source, loops[0])
        devices = {node.id for node in source.walk(device) if isinstance(node, ast.Name)}
        if value.id in changed or devices & changed or not _steps(source, loops[0]):
            continue
        yield Match(call, {"name": value.id})


def _steps(source: Source, loop: ast.AST) -> bool:
    """Whether the loop trains or goes over batches; others may run once."""
    return patterns.takes_steps(source, loop) or (
        isinstance(loop, ast.For) and patterns.over_loader(source, loop)
    )


RULE = Rule(
    number=407,
    name="copied-every-turn",
    message="`{name}` is copied to the device in every turn of the loop, but it does not change there.",
    hint="Copy it once before the loop.",
    check=check,
)
