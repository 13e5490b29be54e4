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
from pinchpoint.rules.engine.values import derives_from_module, is_model_call


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) != "requires_grad_" or is_constant(argument(call, "requires_grad", 0), False):
            continue
        value = receiver(call)
        if isinstance(value, ast.Name) and _is_cut(source, value):
            yield Match(call, {"name": value.id})
    for assign in source.all(ast.Assign):
        target = assign.targets[0]
        if not isinstance(target, ast.Attribute) or target.attr != "requires_grad":
            continue
        value = target.value
        if is_constant(assign.value, True) and isinstance(value, ast.Name) and _is_cut(source, value):
            yield Match(assign, {"name": value.id})


def _is_cut(source: Source, name: ast.Name, depth: int = 4) -> bool:
    """Whether a value was computed under no_grad by a module, directly or through other names."""
    store = source.binding(name)
    computed = source.assigned_value(store) if isinstance(store, ast.Name) else None
    if computed is None or depth == 0 or not patterns.without_gradient(source, computed):
        return False
    for node in source.walk(computed):
        if is_model_call(source, node) or _is_own_module(source, node):
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _is_cut(source, node, depth - 1):
            return True
    return False


def _is_own_module(source: Source, node: ast.AST) -> bool:
    """`self.network(x)` in a module: something that it holds is called with a value."""
    owner = source.class_of(node)
    return (
        owner is not None
        and derives_from_module(source, owner)
        and (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "self"
            and bool(node.args)
        )
    )


RULE = Rule(
    number=501,
    name="gradient-cut",
    message="`{name}` was computed under no_grad: `requires_grad_` does not bring its gradient back.",
    hint="Compute `{name}` with gradients; torch.utils.checkpoint saves the memory.",
    check=check,
)
