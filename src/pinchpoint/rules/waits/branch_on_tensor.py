"""A loop decides with `if` or `while` on a value that is on the device.

Python needs the value, so it waits for the device in every turn. Decide on the device with `torch.where` or
a mask, or look only every so many turns.

Bad:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            loss = model(batch).square().mean()
            if torch.isnan(loss):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

Good:

    import torch

    def train(model, batches, optimizer):
        for batch in batches:
            loss = model(batch).square().mean()
            loss = torch.nan_to_num(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.engine.values import is_tensor


def check(source: Source) -> Iterator[Match]:
    for node in source.all(ast.If, ast.While, ast.IfExp):
        for part in _parts(node.test):
            if not is_tensor(source, part) or _is_structure(source, part):
                continue
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
                continue  # a check of the input
            loops = [node] if isinstance(node, ast.While) else patterns.hot_loops(source, node)
            if loops and not patterns.is_rare(source, node) and not patterns.is_jitted(source, node):
                yield Match(part, {"code": patterns.shorten(part)})
                break


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """The values whose truth a test asks for."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand)
    else:
        yield test


def _is_structure(source: Source, part: ast.expr) -> bool:
    """Whether a test may ask for something else than a value: a bare name may be None or an empty list."""
    return isinstance(part, ast.Name | ast.Attribute | ast.Subscript)


RULE = Rule(
    number=103,
    name="branch-on-tensor",
    message="The test `{code}` waits for the device in every turn of the loop.",
    hint="Use torch.where or a mask, or test only every so many turns.",
    check=check,
)
