"""A tensor is computed under no_grad, and its gradient is then switched on again.

`requires_grad_(True)` on the result makes it a new leaf: the gradient stops there, and whatever computed it
under `torch.no_grad()` is never trained. To save memory, checkpoint the computation instead.

Bad:

    import torch

    def upscale(network, images):
        with torch.no_grad():
            images = network(images)
        return images.requires_grad_(True)

Good:

    import torch
    from torch.utils.checkpoint import checkpoint

    def upscale(network, images):
        return checkpoint(network, images, use_reentrant=False)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, is_constant, method, receiver
from pinchpoint.rules.engine.values import is_model_call


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) != "requires_grad_" or is_constant(argument(call, "requires_grad", 0), False):
            continue
        value = receiver(call)
        if not isinstance(value, ast.Name):
            continue
        store = source.binding(value)
        computed = source.assigned_value(store) if isinstance(store, ast.Name) else None
        if computed is None or not patterns.without_gradient(source, computed):
            continue
        if any(is_model_call(source, node) for node in source.walk(computed)):
            yield Match(call, {"name": value.id})


RULE = Rule(
    number=501,
    name="gradient-cut",
    message="`{name}` was computed under no_grad: `requires_grad_` does not bring its gradient back.",
    hint="Compute `{name}` with gradients; torch.utils.checkpoint saves the memory.",
    check=check,
)
