"""Random numbers are drawn and never used.

A permutation or mask that is computed and then not applied costs its time and leaves the result
deterministic: often the line that should use it takes the first elements instead.

Bad:

    import torch

    def half(points):
        order = torch.randperm(len(points))
        return points[: len(points) // 2]

Good:

    import torch

    def half(points):
        order = torch.randperm(len(points))
        return points[order[: len(points) // 2]]
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_DRAWS = frozenset(
    {f"torch.{name}" for name in ("randperm", "rand", "randn", "randint", "bernoulli", "multinomial")}
    | {f"jax.random.{name}" for name in ("permutation", "normal", "uniform", "randint", "bernoulli")}
)


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        parent = source.parents[call]
        if name not in _DRAWS or not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
            continue
        target, function = parent.targets[0], source.function(call)
        if function is None or not isinstance(target, ast.Name) or target.id.startswith("_"):
            continue
        if function.name.startswith("test") or "locals()" in source.text:
            continue
        shared = any(
            isinstance(n, ast.Global | ast.Nonlocal) and target.id in n.names for n in source.walk(function)
        )
        if (
            not shared
            and not source.loads(function, target.id)
            and not _is_deleted(source, function, target.id)
        ):
            yield Match(call, {"name": target.id})


def _is_deleted(source: Source, function: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Del)
        for node in source.walk(function)
    )


RULE = Rule(
    number=524,
    name="unused-random-draw",
    message="`{name}` is drawn and never used.",
    hint="Use it, or remove the draw.",
    check=check,
)
