"""A training loop switches to evaluation mode and never back.

After the first `model.eval()` inside the loop, all later epochs train without dropout and with frozen batch
statistics. Call `model.train()` inside the loop, before the training part.

Bad:

    import torch

    def fit(model, loader, validation, optimizer, epochs):
        model.train()
        for epoch in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                model(batch).mean().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                print(epoch, torch.stack([model(batch).mean() for batch in validation]).mean().item())

Good:

    import torch

    def fit(model, loader, validation, optimizer, epochs):
        for epoch in range(epochs):
            model.train()
            for batch in loader:
                optimizer.zero_grad()
                model(batch).mean().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                print(epoch, torch.stack([model(batch).mean() for batch in validation]).mean().item())
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) != "eval" or call.args or not isinstance(source.parents[call], ast.Expr):
            continue
        loops = source.statement_loops(call)
        model = ast.unparse(receiver(call))
        if not loops or patterns.is_rare(source, call, loops[-1]):
            continue
        outer = loops[-1]
        trains = any(
            model in {ast.unparse(n.func) for n in source.walk(outer) if isinstance(n, ast.Call)}
            for c in patterns.method_calls(source, outer, "backward")
        )
        again = [
            c for c in patterns.method_calls(source, outer, "train") if ast.unparse(receiver(c)) == model
        ]
        if trains and not again and not _hands_over(source, outer, model):
            yield Match(call, {"name": model})


def _hands_over(source: Source, loop: ast.AST, model: str) -> bool:
    """Whether the loop passes the model to a function, which may switch its mode."""
    return any(
        isinstance(node, ast.Call)
        and any(ast.unparse(arg) == model for arg in node.args)
        and source.name(node.func) not in ("print", "len", "id")
        for node in source.walk(loop)
    )


RULE = Rule(
    number=507,
    name="eval-mode-kept",
    message="`{name}` stays in evaluation mode for all later epochs.",
    hint="Call `{name}.train()` inside the loop, before the training part.",
    check=check,
)
