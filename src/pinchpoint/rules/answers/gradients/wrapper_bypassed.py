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


def check(source: Source) -> Iterator[Match]:
    if "DistributedDataParallel" not in source.text and "DDP" not in source.text:
        return
    for call in source.calls:
        func = call.func
        if not (isinstance(func, ast.Attribute) and func.attr == "module") or isinstance(
            func.value, ast.Call
        ):
            continue
        loops = source.statement_loops(call)
        if patterns.without_gradient(source, call) or not any(
            patterns.takes_steps(source, loop) for loop in loops
        ):
            continue
        yield Match(call, {"name": ast.unparse(func.value)})


RULE = Rule(
    number=505,
    name="wrapper-bypassed",
    message="`{name}.module` is called past the wrapper, so that gradients are not synchronised.",
    hint="Call `{name}` itself in training.",
    check=check,
)
