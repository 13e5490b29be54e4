"""A training loop builds a module, a loss, or an optimizer in every step.

A new module allocates and initialises its weights again, a new optimizer forgets its averages, and both are
set up by Python code that the device waits for. Build them once before the loop.

Bad:

    import torch
    from torch import nn

    def train(model, batches, optimizer):
        for inputs, targets in batches:
            criterion = nn.CrossEntropyLoss()
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()

Good:

    import torch
    from torch import nn

    def train(model, batches, optimizer):
        criterion = nn.CrossEntropyLoss()
        for inputs, targets in batches:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.engine.values import derives_from_module, kind


def check(source: Source) -> Iterator[Match]:
    steps = [
        loop
        for loop in source.all(ast.For, ast.While)
        if patterns.takes_steps(source, loop) and not patterns.is_short(source, loop)
    ]
    if not steps:
        return
    losses = {n.name for n in source.all(ast.ClassDef) if derives_from_module(source, n)}
    for call in source.calls:
        name = source.name(call.func)
        loops = source.statement_loops(call)
        if not loops or loops[0] not in steps or patterns.is_rare(source, call):
            continue
        if name.startswith("torch.optim.") and _is_for_new(source, call, loops[0]):
            continue
        built = kind(source, call) in ("module", "optimizer") and isinstance(
            call.func, ast.Name | ast.Attribute
        )
        if built and (name.startswith(("torch.nn.", "torch.optim.")) or name in losses) and _is_new(name):
            yield Match(call, {"name": name})


def _is_for_new(source: Source, call: ast.Call, loop: ast.AST) -> bool:
    """Whether an optimizer is for tensors that the same turn has made."""
    names = {node.id for arg in call.args for node in source.walk(arg) if isinstance(node, ast.Name)}
    return bool(names & patterns.stores_in(source, loop))


def _is_new(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last[:1].isupper() and not name.startswith(
        ("torch.nn.utils", "torch.nn.parallel", "torch.optim.lr")
    )


RULE = Rule(
    number=304,
    name="module-in-loop",
    message="`{name}` is built again in every step of the loop.",
    hint="Build it once before the loop.",
    check=check,
)
