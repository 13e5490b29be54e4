"""A name is deleted and then used.

The second use raises a NameError, often only in a branch that runs seldom, such as logging. `del` of a
local name frees nothing that is still saved for the backward pass: remove it, or move it after the last
use.

Bad:

    import torch

    def step(model, batch, optimizer):
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        del loss
        return loss.detach()

Good:

    import torch

    def step(model, batch, optimizer):
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source


def check(source: Source) -> Iterator[Match]:
    if not source.uses("torch", "jax"):
        return
    for statement in source.all(ast.Delete):
        block = _block(source, statement)
        later = block[block.index(statement) + 1 :]
        for target in statement.targets:
            if isinstance(target, ast.Name):
                use = _first_use(source, later, target.id)
                if use is not None:
                    yield Match(use, {"name": target.id, "line": str(statement.lineno)})


def _block(source: Source, statement: ast.stmt) -> list[ast.stmt]:
    parent = source.parents[statement]
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def _first_use(source: Source, statements: list[ast.stmt], name: str) -> ast.Name | None:
    """The first read of a name in the following statements; None if it is bound again before, anywhere in
    them."""
    for statement in statements:
        reads = None
        for node in source.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Try | ast.ClassDef):
                return None  # runs later, or handles the error
            if isinstance(node, ast.Name) and node.id == name:
                if not isinstance(node.ctx, ast.Load):
                    return None
                reads = reads or node
            if isinstance(node, ast.alias) and (node.asname or node.name) == name:
                return None
        if reads is not None:
            return reads
    return None


RULE = Rule(
    number=533,
    name="used-after-del",
    message="`{name}` is used here, but line {line} has deleted it.",
    hint="Remove the `del`, or move it after the last use.",
    check=check,
)
