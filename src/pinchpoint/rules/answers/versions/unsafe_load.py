"""torch.load may run code from the file.

With `weights_only=False`, and by default before torch 2.6, loading a checkpoint unpickles it, which can run
anything. Pass `weights_only=True`; for checkpoints with other classes, list them with
`torch.serialization.add_safe_globals`.

Bad:

    import torch

    def weights(path, device):
        return torch.load(path, map_location=device, weights_only=False)

Good:

    import torch

    def weights(path, device):
        return torch.load(path, map_location=device, weights_only=True)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source, argument, forwards, is_constant

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) != "torch.load" or forwards(call):
            continue
        value = argument(call, "weights_only")
        if is_constant(value, False):
            yield Match(call, {"why": "weights_only=False lets the file run code"})
        elif value is None:
            yield Match(call, {"why": "before torch 2.6 the file can run code"})


def _only_weights(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    from pinchpoint.rules.engine.rewriting import add_argument

    call = cst.ensure_type(node, cst.Call)
    for position, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == "weights_only":
            args = list(call.args)
            args[position] = arg.with_changes(value=cst.Name("True"))
            return call.with_changes(args=args)
    return add_argument(call, "weights_only", "True")


RULE = Rule(
    number=543,
    name="unsafe-load",
    message="`torch.load` is not restricted to weights: {why}.",
    hint="Pass weights_only=True.",
    check=check,
    fix=Fix(_only_weights, safe=False),
)
