"""Mixed precision is used by its old name.

`torch.cuda.amp.autocast` and `torch.cuda.amp.GradScaler` are deprecated and warn;
`torch.amp.autocast("cuda")` and `torch.amp.GradScaler("cuda")` do the same.

Bad:

    import torch

    def loss(model, batch, enabled):
        with torch.cuda.amp.autocast(enabled=enabled):
            return model(batch).mean()

Good:

    import torch

    def loss(model, batch, enabled):
        with torch.amp.autocast("cuda", enabled=enabled):
            return model(batch).mean()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source

if TYPE_CHECKING:
    import libcst as cst

_NAMES = frozenset(
    {f"torch.{device}.amp.{name}" for device in ("cuda", "cpu") for name in ("autocast", "GradScaler")}
)


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        if name in _NAMES:
            _, device, _, last = name.split(".")
            # The new name begins with torch, which must be imported.
            whole = source.imports.get("torch") == "torch"
            if f"torch.amp.{last}" in source.text and any(
                isinstance(parent, ast.If | ast.IfExp | ast.Try) for parent in source.ancestors(call)
            ):
                continue  # chosen by the version of torch
            yield Match(call, {"name": name, "device": device, "last": last}, whole and not call.args)


def _use_new_name(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    call = cst.ensure_type(node, cst.Call)
    device = cst.Arg(cst.SimpleString(f'"{match.values["device"]}"'))
    if call.args:
        device = device.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    name = cst.Attribute(cst.Attribute(cst.Name("torch"), cst.Name("amp")), cst.Name(match.values["last"]))
    return call.with_changes(func=name, args=[device, *call.args])


RULE = Rule(
    number=541,
    name="deprecated-amp",
    message="`{name}` is deprecated.",
    hint='Use torch.amp.{last}("{device}", ...).',
    check=check,
    fix=Fix(_use_new_name, safe=True),
)
