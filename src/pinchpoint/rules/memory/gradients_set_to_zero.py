"""zero_grad is told to keep the gradients and fill them with zeros.

With `set_to_none=False` the gradients stay allocated during the forward pass, and the next backward pass
adds to them instead of writing. The default frees them. Optimizers skip a parameter without a gradient,
where zeros still apply momentum and weight decay.

Bad:

    import torch

    def step(model, batch, optimizer):
        optimizer.zero_grad(set_to_none=False)
        model(batch).mean().backward()
        optimizer.step()

Good:

    import torch

    def step(model, batch, optimizer):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source, argument, is_constant, method

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) == "zero_grad" and is_constant(argument(call, "set_to_none", 0), False):
            yield Match(call)


def _use_default(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    call = cst.ensure_type(node, cst.Call)
    return call.with_changes(args=[])


RULE = Rule(
    number=308,
    name="gradients-set-to-zero",
    message="`set_to_none=False` keeps the gradients in memory and fills them with zeros.",
    hint="Leave it out: the default frees the gradients.",
    check=check,
    fix=Fix(_use_default, safe=False),
)
