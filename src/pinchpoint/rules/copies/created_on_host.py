"""A tensor is created on the CPU and then copied to the device.

`torch.zeros(n).to(device)` fills memory on the host and copies it, which also waits for the device. With
`device=device` the tensor is created where it is used. Random tensors are not reported: the device would draw
other numbers.

Bad:

    import torch

    def padding(batch, width, device):
        return torch.zeros(batch, width).to(device)

Good:

    import torch

    def padding(batch, width, device):
        return torch.zeros(batch, width, device=device)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.rewriting import add_argument
from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source, argument, forwards, method, receiver

if TYPE_CHECKING:
    import libcst as cst

_FUNCTIONS = frozenset({f"torch.{name}" for name in ("zeros", "ones", "full", "empty", "eye", "arange")})


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) not in ("to", "cuda"):
            continue
        created, device = receiver(call), device_argument(source, call)
        if not isinstance(created, ast.Call) or device is None or is_host(device):
            continue
        name = source.name(created.func)
        if name not in _FUNCTIONS or argument(created, "device") is not None or forwards(created):
            continue
        if argument(created, "pin_memory") is not None or argument(created, "out") is not None:
            continue
        # A dtype beside the device, and floats whose rounding may differ, are left to the reader.
        simple = len(call.args) + len(call.keywords) <= 1 and not (
            name == "torch.arange" and _has_floats(created)
        )
        yield Match(call, {"name": name}, fixable=simple)


def _has_floats(call: ast.Call) -> bool:
    return not all(isinstance(arg, ast.Constant) and isinstance(arg.value, int) for arg in call.args)


def _create_on_device(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    moved = cst.ensure_type(node, cst.Call)
    created = cst.ensure_type(cst.ensure_type(moved.func, cst.Attribute).value, cst.Call)
    changed = add_argument(created, "device", moved.args[0].value if moved.args else '"cuda"')
    return changed.with_changes(lpar=moved.lpar, rpar=moved.rpar)


RULE = Rule(
    number=403,
    name="created-on-host",
    message="`{name}` creates the tensor on the CPU, and it is then copied to the device.",
    hint="Pass `device=` to `{name}`.",
    check=check,
    fix=Fix(_create_on_device, safe=True),
)
