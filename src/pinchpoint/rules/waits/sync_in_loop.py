"""A loop or comprehension reads a value back from the device in every turn.

`.item()`, `.tolist()`, `.cpu()`, `.numpy()`, `float(x)`, `int(x)`, and `bool(x)` wait until the device has
finished all work it was given, so that nothing runs ahead: the loop goes at the speed of the longest round
trip. Read all values at once before or after the loop, or keep the sum on the device and read it when it is
printed. A read in a branch such as `if step % 100 == 0` is not reported.

Bad:

    import torch

    def cell_sizes(points, device):
        counts = torch.bincount(points.to(device))
        sizes = []
        for cell in range(len(counts)):
            sizes.append(counts[cell].item())
        return sizes

Good:

    import torch

    def cell_sizes(points, device):
        counts = torch.bincount(points.to(device))
        return counts.tolist()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Loop, Source, method, receiver, root
from pinchpoint.rules.engine.values import is_tensor, kind

_READS = ("item", "tolist", "numpy", "cpu")
_COPIES = ("numpy", "cpu")


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        value = _value_read(source, call)
        if value is None:
            continue
        loops = patterns.hot_loops(source, call)
        if not loops or patterns.is_rare(source, call) or patterns.is_jitted(source, call):
            continue
        if method(call) in _COPIES and (_is_stored(source, call) or patterns.over_loader(source, loops[-1])):
            continue
        if is_tensor(source, value) or _is_indexed(source, value, loops[0]):
            yield Match(call, {"code": patterns.shorten(call)})


def _value_read(source: Source, call: ast.Call) -> ast.expr | None:
    """The value that a call copies to the host, if it does."""
    if method(call) in _READS and not call.args:
        return receiver(call)
    if source.name(call.func) in ("float", "int", "bool") and len(call.args) == 1:
        return call.args[0]
    return None


def _is_stored(source: Source, call: ast.Call) -> bool:
    """Whether a copy is kept, as in `outputs.append(x.cpu())`: it is there to free the device's memory."""
    node: ast.AST = call
    parent = source.parents[node]
    while isinstance(parent, ast.Attribute | ast.Subscript) or (
        isinstance(parent, ast.Call) and parent.func is node
    ):
        node, parent = parent, source.parents[parent]
    return isinstance(parent, ast.Assign | ast.ListComp | ast.DictComp) or (
        isinstance(parent, ast.Call) and method(parent) in ("append", "extend", "update")
    )


def _is_indexed(source: Source, value: ast.expr, loop: Loop) -> bool:
    """`x[i].item()` with the loop's `i`, where nothing shows that x is on the host."""
    parent = source.parents[value]
    if not (isinstance(parent, ast.Attribute) and parent.attr == "item") or not isinstance(
        value, ast.Subscript
    ):
        return False
    names = {node.id for node in source.walk(value.slice) if isinstance(node, ast.Name)}
    known = kind(source, value) or kind(source, root(value))
    if known in ("", "module") and source.uses("torch", "jax"):
        return bool(names & patterns.loop_names(source, loop)) and not (source.uses("numpy") and known == "")
    return False


RULE = Rule(
    number=101,
    name="sync-in-loop",
    message="`{code}` waits for the device in every turn of the loop.",
    hint="Read all values with one `.tolist()` or `.cpu()` outside the loop, or keep them on the device.",
    check=check,
)
