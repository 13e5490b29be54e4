"""A model in DistributedDataParallel is called through `.module`.

The wrapper collects gradients from all processes only for calls that go through it: `model.module(x)`
trains each process by itself, and the copies drift apart. Call the wrapper. Evaluation under `no_grad` is
not reported.

Bad:

    import torch
    from torch.nn.parallel import DistributedDataParallel

    def train(network, batches, optimizer):
        model = DistributedDataParallel(network)
        for batch in batches:
            optimizer.zero_grad()
            model.module(batch).mean().backward()
            optimizer.step()

Good:

    import torch
    from torch.nn.parallel import DistributedDataParallel

    def train(network, batches, optimizer):
        model = DistributedDataParallel(network)
        for batch in batches:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

# Methods of a module that compute nothing.
_NO_FORWARD = frozenset(
    {"state_dict", "load_state_dict", "parameters", "named_parameters", "modules", "named_modules", "buffers"}
    | {"children", "zero_grad", "train", "eval", "to", "cuda", "requires_grad_", "size", "update", "step"}
)


def check(source: Source) -> Iterator[Match]:
    if "DistributedDataParallel" not in source.text and "DDP" not in source.text:
        return
    for call in source.calls:
        wrapper = _wrapper(call.func)
        if wrapper is None or isinstance(source.parents[call], ast.Expr):
            continue
        loops = source.statement_loops(call)
        if patterns.without_gradient(source, call) or not any(
            patterns.takes_steps(source, loop) for loop in loops
        ):
            continue
        yield Match(call, {"name": ast.unparse(wrapper)})


def _wrapper(func: ast.expr) -> ast.expr | None:
    """`model` of `model.module(x)` and `model.module.backbone(x)`; None for other calls."""
    if not isinstance(func, ast.Attribute) or func.attr in _NO_FORWARD or func.attr.startswith("_"):
        return None
    node: ast.expr = func
    while isinstance(node, ast.Attribute):
        if node.attr == "module":
            return None if isinstance(node.value, ast.Call) else node.value
        node = node.value
    return None


RULE = Rule(
    number=505,
    name="wrapper-bypassed",
    message="`{name}.module` is called past the wrapper, so that gradients are not synchronised.",
    hint="Call `{name}` itself in training.",
    check=check,
)
