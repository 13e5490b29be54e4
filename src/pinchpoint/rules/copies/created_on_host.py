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
from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source, argument, forwards, method, receiver

if TYPE_CHECKING:
    import libcst as cst

_FUNCTIONS = frozenset({f"torch.{name}" for name in ("zeros", "ones", "full", "empty", "eye", "arange")})


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) not in ("to", "cuda"):
            continue
        device, value = device_argument(source, call), receiver(call)
        created = _created(source, value)
        if not isinstance(created, ast.Call) or device is None or is_host(device):
            continue
        name = source.name(created.func)
        if name not in _FUNCTIONS or argument(created, "device") is not None or forwards(created):
            continue
        if argument(created, "pin_memory") is not None or argument(created, "out") is not None:
            continue
        is_direct = created is value
        yield Match(call, {"name": name}, fixable=is_direct and _is_simple(source, call, created))


def _created(source: Source, value: ast.expr | None) -> ast.expr | None:
    """What creates a value: `torch.ones(n, n)` of `torch.tril(torch.ones(n, n))` and of `.tril()`."""
    while isinstance(value, ast.Call):
        if source.name(value.func) in ("torch.tril", "torch.triu") and value.args:
            value = value.args[0]
        elif method(value) in ("tril", "triu", "bool", "view", "unsqueeze"):
            value = receiver(value)
        else:
            break
    return value


def _is_simple(source: Source, call: ast.Call, created: ast.Call) -> bool:
    """Whether the tensor is the same when it is created on the device, and a dtype can go with it."""
    name = source.name(created.func)
    if argument(created, "requires_grad") is not None:  # the copy would become a leaf with gradients
        return False
    if not {keyword.arg for keyword in call.keywords} <= {"device", "dtype"}:
        return False
    if name == "torch.arange":  # the steps of floats may be rounded in another way
        numbers = [arg.value if isinstance(arg, ast.Constant) else None for arg in created.args]
        return len(call.args) + len(call.keywords) <= 1 and all(isinstance(number, int) for number in numbers)
    if len(call.args) + len(call.keywords) <= 1:
        return True
    keys = {keyword.arg for keyword in call.keywords}
    plain = name in ("torch.zeros", "torch.ones") and argument(created, "dtype") is None
    return plain and not call.args and keys == {"device", "dtype"}


def _create_on_device(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    from pinchpoint.rules.engine.rewriting import add_argument

    moved = cst.ensure_type(node, cst.Call)
    created = cst.ensure_type(cst.ensure_type(moved.func, cst.Attribute).value, cst.Call)
    if not moved.args:
        created = add_argument(created, "device", '"cuda"')
    for arg in moved.args:
        created = add_argument(created, arg.keyword.value if arg.keyword else "device", arg.value)
    return created.with_changes(lpar=moved.lpar, rpar=moved.rpar)


RULE = Rule(
    number=403,
    name="created-on-host",
    message="`{name}` creates the tensor on the CPU, and it is then copied to the device.",
    hint="Pass `device=` to `{name}`.",
    check=check,
    fix=Fix(_create_on_device, safe=True),
)
