"""A loop empties the cache of the CUDA allocator.

`torch.cuda.empty_cache()` does not lower the peak: memory in use stays in use, and what is free is used
again anyway. It waits for the device and gives blocks back that the next step must allocate anew. Against
fragmentation, keep shapes constant or set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. A call after
running out of memory is not reported.

Bad:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
            torch.cuda.empty_cache()

Good:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
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

_NAMES = frozenset({"torch.cuda.empty_cache", "torch.mps.empty_cache", "torch.xpu.empty_cache"})


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        statement = source.parents[call]
        if name in _NAMES and isinstance(statement, ast.Expr) and patterns.runs_in_loop(source, call):
            yield Match(statement, {"name": name}, fixable=patterns.is_removable(source, statement))


def _remove(node: cst.CSTNode, match: Match) -> cst.RemovalSentinel:
    import libcst as cst

    return cst.RemoveFromParent()


RULE = Rule(
    number=302,
    name="empty-cache-in-loop",
    message="`{name}` in a loop slows it down and does not lower the peak.",
    hint="Remove it; against fragmentation set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    check=check,
    fix=Fix(_remove, safe=False),
)
