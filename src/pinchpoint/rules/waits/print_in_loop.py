"""A loop prints a tensor that is on the device in every turn.

To print a value, Python waits until the device has computed it. Print every so many steps, or collect the
values with `.detach()` and print them together.

Bad:

    def train(model, batches, optimizer):
        import torch
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            print(f"step {step}: {loss:.4f}")

Good:

    def train(model, batches, optimizer):
        import torch
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"step {step}: {loss:.4f}")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.engine.values import is_tensor


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) not in ("print", "tqdm.write", "tqdm.tqdm.write"):
            continue
        values = [node.value for node in source.walk(call) if isinstance(node, ast.FormattedValue)]
        values += [arg for arg in call.args if not isinstance(arg, ast.JoinedStr)]
        tensors = [value for value in values if is_tensor(source, value)]
        if not tensors or not patterns.hot_loops(source, call) or patterns.is_rare(source, call):
            continue
        yield Match(call, {"code": patterns.shorten(tensors[0])})


RULE = Rule(
    number=104,
    name="print-in-loop",
    message="Printing `{code}` waits for the device in every turn of the loop.",
    hint="Print every so many steps, or collect `{code}.detach()` and print after the loop.",
    check=check,
)
