"""A tensor is copied to the host without waiting, and read at once.

`x.to("cpu", non_blocking=True)` returns before the data has arrived: numpy and Python read whatever is in
the memory. Wait first with `torch.cuda.synchronize()` or an event, or leave `non_blocking` out.

Bad:

    import torch

    def fetch(scores):
        scores = scores.to("cpu", non_blocking=True)
        return scores.numpy()

Good:

    import torch

    def fetch(scores):
        scores = scores.to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        return scores.numpy()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, is_constant, method, receiver, root

_READS = ("numpy", "item", "tolist")
_CONVERSIONS = ("float", "int", "bool", "print")


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) != "to" or not is_constant(argument(call, "non_blocking"), True):
            continue
        if not is_host(device_argument(source, call)):
            continue
        read = _read(source, call)
        if read is not None and not _waits(source, call, read):
            yield Match(read)


def _read(source: Source, copy: ast.Call) -> ast.Call | None:
    """The call that reads the copy: directly, or through the name it is assigned to."""
    parent = source.parents[copy]
    if isinstance(parent, ast.Attribute) and parent.attr in _READS:
        call = source.parents[parent]
        return call if isinstance(call, ast.Call) else None
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return None
    name = parent.targets[0]
    for node in source.walk(source.function(copy) or source.tree):
        if isinstance(node, ast.Call) and (method(node) in _READS or source.name(node.func) in _CONVERSIONS):
            value = root(receiver(node) if method(node) in _READS or not node.args else node.args[0])
            if isinstance(value, ast.Name) and value.id == name.id and source.binding(value) is name:
                return node
    return None


def _waits(source: Source, copy: ast.Call, read: ast.Call) -> bool:
    """Whether anything between the copy and the read waits for the device or an event."""
    return any(
        isinstance(node, ast.Call)
        and copy.lineno <= node.lineno <= read.lineno
        and (
            "synchronize" in ast.unparse(node.func)
            or method(node) in ("wait", "wait_event", "wait_stream", "query")
        )
        for node in source.walk(source.function(copy) or source.tree)
    )


RULE = Rule(
    number=534,
    name="host-read-before-sync",
    message="The copy to the host does not wait, and the data is read before it has arrived.",
    hint="Call torch.cuda.synchronize() before reading, or leave out non_blocking=True.",
    check=check,
)
