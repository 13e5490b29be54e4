"""A model with batch norm is trained with batches of one sample.

Batch norm normalises by the statistics of the batch. With one sample these are the sample's own: after
pooling they are zero and torch raises an error, and elsewhere training and evaluation differ widely. Use
larger batches or group norm.

Bad:

    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    def train(dataset, optimizer_of):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        optimizer = optimizer_of(model)
        for images in DataLoader(dataset, batch_size=1, shuffle=True, num_workers=2):
            optimizer.zero_grad()
            model(images).mean().backward()
            optimizer.step()

Good:

    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    def train(dataset, optimizer_of):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU())
        optimizer = optimizer_of(model)
        for images in DataLoader(dataset, batch_size=1, shuffle=True, num_workers=2):
            optimizer.zero_grad()
            model(images).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.loaders import loaders, option
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method


def check(source: Source) -> Iterator[Match]:
    norms = [c for c in source.calls if source.name(c.func).startswith("torch.nn.BatchNorm")]
    if not norms:
        return
    yield from _single_rows(source)
    for call in loaders(source):
        size = option(call, "batch_size")
        one = size is None or (isinstance(size, ast.Constant) and size.value == 1 and size.value is not True)
        if one and call.args and _is_trained_on(source, call):
            yield Match(call)


def _single_rows(source: Source) -> Iterator[Match]:
    """Calls of a BatchNorm1d of the same class with one row: `self.norm(x.unsqueeze(0))`."""
    norms = {
        (owner, target.attr)
        for assign in source.all(ast.Assign)
        if source.called(assign.value) == "torch.nn.BatchNorm1d"
        for target in assign.targets
        if isinstance(target, ast.Attribute) and (owner := source.class_of(assign)) is not None
    }
    for call in source.calls:
        if not isinstance(call.func, ast.Attribute) or (source.class_of(call), call.func.attr) not in norms:
            continue
        rows = call.args[0] if call.args else None
        single = (
            isinstance(rows, ast.Call) and method(rows) == "unsqueeze" and ast.unparse(rows.args[0]) == "0"
        )
        if single or (isinstance(rows, ast.Subscript) and ast.unparse(rows.slice) == "None"):
            yield Match(call)


def _is_trained_on(source: Source, loader: ast.Call) -> bool:
    """Whether a loop over the loader runs a backward pass."""
    parent = source.parents[loader]
    names = (
        {t.id for t in parent.targets if isinstance(t, ast.Name)} if isinstance(parent, ast.Assign) else set()
    )
    for loop in source.all(ast.For):
        over = source.inside(loader, loop.iter) or names & {
            n.id for n in source.walk(loop.iter) if isinstance(n, ast.Name)
        }
        if over and patterns.method_calls(source, loop, "backward"):
            return True
    return False


RULE = Rule(
    number=535,
    name="batch-norm-of-one",
    message="Batch norm sees batches of one sample.",
    hint="Use a larger batch_size, or group norm.",
    check=check,
)
