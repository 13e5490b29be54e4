"""A checkpoint stores the optimizer but not the gradient scaler.

A resumed run begins with the scaler's first scale: it overflows and skips steps until the scale is found
again, so that the resumed run differs. Save `scaler.state_dict()` with the rest.

Bad:

    import torch

    def save(path, model, optimizer):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    def train(model, batches, optimizer, path):
        scaler = torch.amp.GradScaler("cuda")
        for batch in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(batch).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        save(path, model, optimizer)

Good:

    import torch

    def save(path, model, optimizer, scaler):
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(states | {"scaler": scaler.state_dict()}, path)

    def train(model, batches, optimizer, path):
        scaler = torch.amp.GradScaler("cuda")
        for batch in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(batch).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        save(path, model, optimizer, scaler)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_SCALERS = frozenset({"torch.amp.GradScaler", "torch.cuda.amp.GradScaler"})


def check(source: Source) -> Iterator[Match]:
    if not any(source.name(call.func) in _SCALERS for call in source.calls):
        return
    if re.search(r"scaler\w*(\[[^]]*\])?\.state_dict\(", source.text, re.IGNORECASE):
        return
    for call in source.calls:
        if source.name(call.func) != "torch.save" or not call.args:
            continue
        states = _states(source, call.args[0])
        if states is not None and re.search(r"opt\w*\.state_dict\(", ast.unparse(states)):
            yield Match(call)


def _states(source: Source, node: ast.expr) -> ast.expr | None:
    """What is saved, given directly or by the name it was assigned to."""
    if isinstance(node, ast.Name):
        store = source.binding(node)
        return source.assigned_value(store) if isinstance(store, ast.Name) else None
    return node


RULE = Rule(
    number=512,
    name="scaler-not-saved",
    message="The checkpoint holds the optimizer but not the gradient scaler that the file uses.",
    hint="Save scaler.state_dict() with the optimizer, and load it when resuming.",
    check=check,
)
