"""A tensor goes to the host as a numpy array and back to the device.

Both copies wait: the first for the device, the second for the host. Use the operation of torch, which runs
where the tensor is.

Bad:

    import numpy as np
    import torch

    def sorted_rows(rows: torch.Tensor, device):
        return torch.from_numpy(np.sort(rows.cpu().numpy())).to(device)

Good:

    import torch

    def sorted_rows(rows: torch.Tensor, device):
        return rows.sort().values
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method, receiver
from pinchpoint.rules.engine.values import kind

_BACK = frozenset({"torch.from_numpy", "torch.tensor", "torch.as_tensor"})


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) not in _BACK or not call.args:
            continue
        parent = source.parents[call]
        moved = source.parents[parent] if isinstance(parent, ast.Attribute) else None
        device = argument(call, "device")
        if isinstance(moved, ast.Call):
            device = device_argument(source, moved)
        if device is None or is_host(device):
            continue
        for read in _reads(source, call.args[0], 3):
            if kind(source, _tensor(read)) == "device":
                yield Match(call)
                break


def _reads(source: Source, node: ast.expr, depth: int) -> Iterator[ast.Call]:
    """The calls of `.numpy()` that a value is computed from, through names of the same function."""
    for part in source.walk(node):
        if method(part) == "numpy" and isinstance(part, ast.Call):
            yield part
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and depth > 0:
            store = source.binding(part)
            value = source.assigned_value(store) if isinstance(store, ast.Name) else None
            here = value is not None and value is not node and source.function(value) is source.function(node)
            if here and value is not None and kind(source, part) == "numpy":
                yield from _reads(source, value, depth - 1)


def _tensor(read: ast.Call) -> ast.expr:
    """`x` of `x.detach().cpu().numpy()`."""
    value = receiver(read)
    while isinstance(value, ast.Call) and method(value) in ("detach", "cpu", "float", "data"):
        value = receiver(value)
    return value


RULE = Rule(
    number=408,
    name="round-trip",
    message="The tensor goes from the device to numpy and back.",
    hint="Use the operation of torch, so that the data stays on the device.",
    check=check,
)
