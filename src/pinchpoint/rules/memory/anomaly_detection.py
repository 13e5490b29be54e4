"""Anomaly detection is switched on for the whole run.

`torch.autograd.set_detect_anomaly(True)` records a traceback for every operation and checks every gradient
for NaN, which waits for the device. Use it as a context around the steps that are being debugged, or behind
an option.

Bad:

    import torch

    torch.autograd.set_detect_anomaly(True)

    def train(model, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()

Good:

    import torch

    def train(model, batches, optimizer, debug=False):
        torch.autograd.set_detect_anomaly(debug)
        for batch in batches:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, is_constant


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        if name not in (
            "torch.autograd.set_detect_anomaly",
            "torch.autograd.anomaly_mode.set_detect_anomaly",
        ):
            continue
        guarded = any(isinstance(parent, ast.If | ast.With) for parent in source.ancestors(call))
        alone = isinstance(source.parents[call], ast.Expr) and not guarded
        if alone and is_constant(argument(call, "mode", 0), True):
            yield Match(call)


RULE = Rule(
    number=311,
    name="anomaly-detection",
    message="Anomaly detection is on for the whole run: every operation is slower and keeps a traceback.",
    hint="Remove it, or switch it on with an option while debugging.",
    check=check,
)
