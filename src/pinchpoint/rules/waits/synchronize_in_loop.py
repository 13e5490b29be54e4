"""A loop waits for the device explicitly in every turn.

`torch.cuda.synchronize()` and `block_until_ready()` stop the host until all work is done. Results do not
need them: operations on one stream run in order. Where a loop measures time, the wait is needed and not
reported.

Bad:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            torch.cuda.synchronize()

Good:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        explicit = name in (
            "torch.cuda.synchronize",
            "torch.accelerator.synchronize",
            "jax.block_until_ready",
        )
        if not explicit and method(call) != "block_until_ready":
            continue
        if not patterns.hot_loops(source, call) or patterns.is_rare(source, call):
            continue
        function = source.function(call)
        if function is not None and function.name in ("block_until_ready", "synchronize"):
            continue  # waiting is what the function is for
        if not patterns.measures_time(source, call):
            yield Match(call, {"name": name or "block_until_ready"})


RULE = Rule(
    number=105,
    name="synchronize-in-loop",
    message="`{name}` waits for the device in every turn of the loop.",
    hint="Remove it: operations on one stream run in order. Keep it only around a clock.",
    check=check,
)
