"""The only backward pass of a step keeps its graph.

`retain_graph=True` holds all saved activations until the next forward pass has built its own, so that two
steps are in memory at once. It is needed only where the same graph is differentiated again.

Bad:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            loss = model(batch).mean()
            loss.backward(retain_graph=True)
            optimizer.step()

Good:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source, argument, is_constant, method, receiver, root

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) != "backward" or not is_constant(argument(call, "retain_graph"), True):
            continue
        loops = source.statement_loops(call)
        if not loops or patterns.hot_loops(source, call)[:1] != loops[:1]:
            continue
        passes = patterns.method_calls(source, loops[0], "backward")
        gradients = any(
            source.called(node) in ("torch.autograd.grad", "torch.autograd.backward")
            for node in source.walk(source.function(call) or source.tree)
        )
        loss = root(receiver(call))
        rebuilt = isinstance(loss, ast.Name) and loss.id in patterns.stores_in(source, loops[0])
        if len(passes) == 1 and rebuilt and not gradients and patterns.takes_steps(source, loops[0]):
            yield Match(call, fixable=len(call.args) + len(call.keywords) == 1)


def _without_arguments(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    return cst.ensure_type(node, cst.Call).with_changes(args=[])


RULE = Rule(
    number=310,
    name="retained-graph",
    message="`retain_graph=True` keeps the activations of this step during the next one.",
    hint="Remove it: this is the only backward pass of the step.",
    check=check,
    fix=Fix(_without_arguments, safe=False),
)
