"""A loop collects garbage in every turn.

`gc.collect()` looks at every object of the process, which takes up to a second with large libraries loaded.
Tensors are freed without it when their last reference goes away; only reference cycles wait for the
collector, which runs by itself.

Bad:

    import gc
    import torch

    def evaluate(model, batches):
        scores = []
        with torch.no_grad():
            for batch in batches:
                scores.append(model(batch).mean())
                gc.collect()
        return torch.stack(scores)

Good:

    import gc
    import torch

    def evaluate(model, batches):
        scores = []
        with torch.no_grad():
            for batch in batches:
                scores.append(model(batch).mean())
        return torch.stack(scores)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    if not source.uses("torch", "jax"):
        return
    for call in source.calls:
        statement = source.parents[call]
        collects = source.name(call.func) == "gc.collect" and isinstance(statement, ast.Expr)
        if collects and patterns.runs_in_loop(source, call):
            assert isinstance(statement, ast.Expr)
            yield Match(statement, fixable=patterns.is_removable(source, statement))


def _remove(node: cst.CSTNode, match: Match) -> cst.RemovalSentinel:
    import libcst as cst

    return cst.RemoveFromParent()


RULE = Rule(
    number=303,
    name="gc-in-loop",
    message="`gc.collect()` runs in every turn of the loop.",
    hint="Remove it: tensors are freed when their last reference goes away.",
    check=check,
    fix=Fix(_remove, safe=False),
)
