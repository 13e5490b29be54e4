"""torch.compile is called inside a loop or inside forward.

Each call makes a new compiled function: it is traced and compiled again, up to minutes each time, and after
a few times torch stops compiling it. Compile once after the model is built.

Bad:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            compiled = torch.compile(model)
            optimizer.zero_grad()
            compiled(batch).mean().backward()
            optimizer.step()

Good:

    import torch

    def train(model, batches, optimizer):
        compiled = torch.compile(model)
        for batch in batches:
            optimizer.zero_grad()
            compiled(batch).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_NAMES = frozenset(
    {"torch.compile", "torch.jit.script", "torch.jit.trace", "torch.func.grad", "torch.func.hessian"}
)


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        if name not in _NAMES or patterns.is_rare(source, call):
            continue
        function = source.function(call)
        forward = (
            function is not None and function.name in ("forward", "training_step") and name == "torch.compile"
        )
        loops = patterns.hot_loops(source, call)
        if forward or (loops and not patterns.is_kept(source, call) and _is_same(source, call, loops[0])):
            yield Match(call, {"name": name})


def _is_same(source: Source, call: ast.Call, loop: ast.AST) -> bool:
    """Whether the loop compiles what exists before it, not a new function or module of each turn."""
    if not call.args:
        return False
    names = {node.id for node in source.walk(call.args[0]) if isinstance(node, ast.Name)}
    return not names & patterns.stores_in(source, loop)


RULE = Rule(
    number=205,
    name="compile-in-loop",
    message="`{name}` makes a new function every time, which is compiled again.",
    hint="Compile once after the model is built.",
    check=check,
)
