"""A gradient scaler is used with bfloat16.

bfloat16 has the range of float32, so that gradients do not vanish and need no scaling. The scaler costs a
wait in every step (it looks for infinities) and skips steps. Use it with float16 only.

Bad:

    import torch

    def train(model, batches, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        for batch in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(batch).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

Good:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(batch).mean()
            loss.backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, is_constant

SCALERS = frozenset({"torch.amp.GradScaler", "torch.cuda.amp.GradScaler"})


def check(source: Source) -> Iterator[Match]:
    scalers = [call for call in source.calls if source.name(call.func) in SCALERS]
    casts = [call for call in source.calls if source.name(call.func) in patterns.AUTOCAST]
    if not scalers or not casts:
        return
    types = {_type(source, argument(call, "dtype", 1)) for call in casts}
    if types == {"torch.bfloat16"}:
        for call in scalers:
            enabled = argument(call, "enabled")
            if not is_constant(enabled, False) and not (enabled and _asks_for_type(enabled)):
                yield Match(call)


def _type(source: Source, node: ast.expr | None) -> str:
    """The name of a dtype, given directly or by the name it was assigned to."""
    store = source.binding(node) if isinstance(node, ast.Name) else None
    value = source.assigned_value(store) if isinstance(store, ast.Name) else None
    return source.name(value if value is not None else node)


def _asks_for_type(enabled: ast.expr) -> bool:
    """`enabled=dtype == torch.float16` and the like."""
    return re.search(r"16|half|dtype|amp|precision", ast.unparse(enabled)) is not None


RULE = Rule(
    number=511,
    name="scaler-with-bfloat16",
    message="The gradient scaler has no use with bfloat16.",
    hint="Remove the scaler: call loss.backward() and optimizer.step().",
    check=check,
)
