"""A gradient penalty is computed under autocast.

R1 and similar penalties differentiate the network's output and square the gradient, which overflows or
vanishes in float16. Compute the penalty in float32: leave the context, or open `torch.autocast("cuda",
enabled=False)` and convert the inputs.

Bad:

    import torch

    def penalty(discriminator, images):
        images = images.detach().requires_grad_(True)
        with torch.autocast("cuda", dtype=torch.float16):
            scores = discriminator(images)
            (gradient,) = torch.autograd.grad(scores.sum(), images, create_graph=True)
        return gradient.square().sum([1, 2, 3]).mean()

Good:

    import torch

    def penalty(discriminator, images):
        images = images.detach().requires_grad_(True)
        with torch.autocast("cuda", enabled=False):
            scores = discriminator(images.float())
            (gradient,) = torch.autograd.grad(scores.sum(), images, create_graph=True)
        return gradient.square().sum([1, 2, 3]).mean()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, is_constant


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) != "torch.autograd.grad" or not is_constant(
            argument(call, "create_graph"), True
        ):
            continue
        context = patterns.within(source, call, patterns.AUTOCAST)
        if isinstance(context, ast.Call) and not is_constant(argument(context, "enabled"), False):
            yield Match(call)
    yield from _through_functions(source)


def _through_functions(source: Source) -> Iterator[Match]:
    """Calls under autocast of functions of the file that differentiate twice."""
    names = {
        function.name
        for call in source.calls
        if source.name(call.func) == "torch.autograd.grad"
        and is_constant(argument(call, "create_graph"), True)
        and (function := source.function(call)) is not None
        and patterns.within(source, call, patterns.AUTOCAST) is None
    }
    for call in source.calls if names else ():
        if source.name(call.func).rpartition(".")[2] not in names:
            continue
        context = patterns.within(source, call, patterns.AUTOCAST)
        if isinstance(context, ast.Call) and not is_constant(argument(context, "enabled"), False):
            yield Match(call)


RULE = Rule(
    number=513,
    name="penalty-under-autocast",
    message="The gradient penalty is computed under autocast, in reduced precision.",
    hint='Compute it under torch.autocast("cuda", enabled=False) with float32 inputs.',
    check=check,
)
