"""Devices that code names: the arguments of `.to(...)`, `.cuda()` and `device=`."""

from __future__ import annotations

import ast
import re

from pinchpoint.rules.engine.source import Source, method


def device_argument(source: Source, call: ast.Call) -> ast.expr | None:
    """The device that `x.to(...)` or `x.cuda()` names; None where it names only a dtype or another tensor."""
    if method(call) == "cuda":
        return call.args[0] if call.args else call.func
    if method(call) != "to":
        return None
    for keyword in call.keywords:
        if keyword.arg == "device":
            return keyword.value
    return call.args[0] if call.args and names_device(source, call.args[0]) else None


def names_device(source: Source, node: ast.expr) -> bool:
    """Whether an expression names a device: "cuda:0", `device`, `self.device`, `torch.device(...)`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.match(r"(cuda|cpu|mps|xpu|hpu|npu)(:\d+)?$", node.value) is not None
    if source.called(node) == "torch.device":
        return True
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.Constant) and "cuda" in str(part.value) for part in node.values)
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return re.search(r"(^|_)(device|dev|gpu)(_?\d+)?$", last, re.IGNORECASE) is not None


def is_host(node: ast.expr | None) -> bool:
    """Whether a device argument is the CPU."""
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return isinstance(node, ast.Constant) and node.value == "cpu"
