"""The input of a cross entropy has been through softmax.

`cross_entropy` applies log-softmax itself: with probabilities as its input the loss is flat, and training
is slow. Pass the logits.

Bad:

    import torch
    import torch.nn.functional as F

    def loss(model, inputs, targets):
        probabilities = torch.softmax(model(inputs), dim=1)
        return F.cross_entropy(probabilities, targets)

Good:

    import torch
    import torch.nn.functional as F

    def loss(model, inputs, targets):
        logits = model(inputs)
        return F.cross_entropy(logits, targets)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        loss = source.name(call.func) == "torch.nn.functional.cross_entropy"
        if not loss and isinstance(call.func, ast.Name):
            store = source.binding(call.func)
            built = source.assigned_value(store) if isinstance(store, ast.Name) else None
            loss = source.called(built) == "torch.nn.CrossEntropyLoss"
        value = argument(call, "input", 0) if loss else None
        if value is not None and _is_softmax(source, value):
            yield Match(call)


def _is_softmax(source: Source, value: ast.expr) -> bool:
    if isinstance(value, ast.Name):
        store = source.binding(value)
        assigned = source.assigned_value(store) if isinstance(store, ast.Name) else None
        return assigned is not None and not isinstance(assigned, ast.Name) and _is_softmax(source, assigned)
    if not isinstance(value, ast.Call):
        return False
    name = source.name(value.func)
    return name in ("torch.softmax", "torch.nn.functional.softmax") or method(value) == "softmax"


RULE = Rule(
    number=515,
    name="softmax-twice",
    message="The input of the cross entropy has already been through softmax.",
    hint="Pass the logits.",
    check=check,
)
