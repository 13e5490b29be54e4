"""torch.tensor is called with a tensor.

It copies the values, for a tensor on the device through the host, and torch warns about it.
`x.detach().clone()` copies on the device.

Bad:

    import torch

    def frozen(model, inputs):
        outputs = model(inputs)
        return torch.tensor(outputs)

Good:

    import torch

    def frozen(model, inputs):
        outputs = model(inputs)
        return outputs.detach().clone()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.engine.values import kind

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) != "torch.tensor" or len(call.args) != 1:
            continue
        value = call.args[0]
        if _is_checked(source, call, value):
            continue
        if isinstance(value, ast.Name | ast.Attribute) and kind(source, value) in ("device", "host"):
            yield Match(call, {"name": ast.unparse(value)}, fixable=not call.keywords)


def _is_checked(source: Source, call: ast.Call, value: ast.expr) -> bool:
    """Whether a test before the call asks for the type of the value: `if not isinstance(x, Tensor)`."""
    return any(
        isinstance(parent, ast.If | ast.IfExp)
        and "instance" in ast.unparse(parent.test)
        and ast.unparse(value) in ast.unparse(parent.test)
        for parent in source.ancestors(call)
    )


def _clone(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    call = cst.ensure_type(node, cst.Call)
    detached = cst.Call(cst.Attribute(call.args[0].value, cst.Name("detach")))
    return cst.Call(cst.Attribute(detached, cst.Name("clone")), lpar=call.lpar, rpar=call.rpar)


RULE = Rule(
    number=409,
    name="tensor-of-tensor",
    message="`torch.tensor` copies the tensor `{name}` through the host.",
    hint="Use {name}.detach().clone().",
    check=check,
    fix=Fix(_clone, safe=True),
)
