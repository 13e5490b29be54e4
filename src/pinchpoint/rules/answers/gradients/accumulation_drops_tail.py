"""Gradients are accumulated over several batches, and the last ones are dropped.

`if (i + 1) % n == 0: optimizer.step()` takes no step for the batches after the last multiple of n. Their
gradients are lost, or leak into the first step of the next epoch. Step after the loop as well, or test for
the last batch.

Bad:

    import torch

    def train(model, loader, optimizer, accumulate):
        for i, batch in enumerate(loader):
            (model(batch).mean() / accumulate).backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()

Good:

    import torch

    def train(model, loader, optimizer, accumulate):
        for i, batch in enumerate(loader):
            (model(batch).mean() / accumulate).backward()
            if (i + 1) % accumulate == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver


def check(source: Source) -> Iterator[Match]:
    for branch in source.all(ast.If):
        loops = source.statement_loops(branch)
        if not loops or not isinstance(loops[0], ast.For) or not _counts(branch.test, loops[0], source):
            continue
        steps = [
            c for step in branch.body for c in patterns.method_calls(source, step, "step") if _is_step(c)
        ]
        backward = [
            call
            for call in patterns.method_calls(source, loops[0], "backward")
            if not source.inside(call, branch) and source.statement_loops(call)[:1] == loops[:1]
        ]
        if steps and backward and not _steps_elsewhere(source, branch, loops[0], steps[0]):
            yield Match(branch.test if isinstance(branch.test, ast.expr) else branch)


def _counts(test: ast.expr, loop: ast.For, source: Source) -> bool:
    """`(i + 1) % n == 0` or `not i % n` with the counter of `enumerate`, and nothing else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        counted = {node.id for node in source.walk(test.operand) if isinstance(node, ast.Name)}
        remainder = isinstance(test.operand, ast.BinOp) and isinstance(test.operand.op, ast.Mod)
        return remainder and bool(counted & patterns.loop_names(source, loop))
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    remainder = next(
        (
            s
            for s in (test.left, test.comparators[0])
            if isinstance(s, ast.BinOp) and isinstance(s.op, ast.Mod)
        ),
        None,
    )
    if remainder is None:
        return False
    names = {node.id for node in source.walk(remainder.left) if isinstance(node, ast.Name)}
    return bool(names & patterns.loop_names(source, loop))


def _is_step(call: ast.Call) -> bool:
    words = ast.unparse(call.func).lower()
    return (
        method(call) == "step" and "sched" not in words and "profiler" not in words and "prof." not in words
    )


def _optimizer(call: ast.Call) -> str:
    """`optimizer` of `optimizer.step()` and of `scaler.step(optimizer)`."""
    return ast.unparse(call.args[0] if call.args else receiver(call))


def _steps_elsewhere(source: Source, branch: ast.If, loop: ast.For, step: ast.Call) -> bool:
    """Whether the same optimizer steps again, in the loop or after it: for the tail, or in every turn."""
    scope = source.function(loop) or source.tree
    return any(
        _is_step(call)
        and _optimizer(call) == _optimizer(step)
        and not source.inside(call, branch)
        and call.lineno >= loop.lineno
        for call in patterns.method_calls(source, scope, "step")
    )


RULE = Rule(
    number=504,
    name="accumulation-drops-tail",
    message="The batches after the last full group get no optimizer step.",
    hint="Also step for the last batch: `or i + 1 == len(loader)`.",
    check=check,
)
