"""A loop grows a tensor by concatenating to it.

Every turn copies all that was collected so far, so that time and traffic grow with the square of the number
of turns, and two copies are alive at once; under `jax.jit` every new size compiles again. Append to a list
and concatenate once.

Bad:

    import torch

    def features(model, batches):
        collected = torch.empty(0, 128)
        for batch in batches:
            collected = torch.cat([collected, model(batch)])
        return collected

Good:

    import torch

    def features(model, batches):
        collected = []
        for batch in batches:
            collected.append(model(batch))
        return torch.cat(collected)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_NAMES = frozenset(
    f"{package}.{name}"
    for package in ("torch", "jax.numpy")
    for name in ("cat", "concat", "concatenate", "hstack", "vstack", "append")
)


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) not in _NAMES or not call.args:
            continue
        parent = source.parents[call]
        if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
            continue
        name = parent.targets[0].id
        first = call.args[0]
        parts = first.elts if isinstance(first, ast.List | ast.Tuple) else call.args[:2]
        grows = any(isinstance(part, ast.Name) and part.id == name for part in parts)
        loops = [loop for loop in source.statement_loops(call) if not patterns.is_short(source, loop)]
        if not grows or not loops or patterns.is_rare(source, call):
            continue
        # Where the loop reads what was collected (a cache of keys, generated tokens), it needs the whole.
        if len(source.loads(loops[0], name)) == 1 and not _starts_again(source, parent, loops[0], name):
            yield Match(call, {"name": name})


def _starts_again(source: Source, assign: ast.Assign, loop: ast.AST, name: str) -> bool:
    """Whether the loop gives the name a new value in every turn before it is grown."""
    return any(
        node is not assign.targets[0] and isinstance(node, ast.Name) and node.id == name
        for node in source.walk(loop)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


RULE = Rule(
    number=309,
    name="grown-by-concatenation",
    message="`{name}` is copied as a whole in every turn of the loop.",
    hint="Append to a list and concatenate once after the loop.",
    check=check,
)
