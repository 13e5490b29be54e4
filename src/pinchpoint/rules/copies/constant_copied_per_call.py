"""forward creates the same constant tensor on the device in every call.

`torch.tensor([...], device=...)` builds the values on the host and copies them, and the host waits.
Register the constant once with `register_buffer`; it then moves with the module.

Bad:

    import torch
    from torch import nn

    class Normalize(nn.Module):
        def forward(self, images):
            mean = torch.tensor([0.485, 0.456, 0.406], device=images.device)
            return images - mean[:, None, None]

Good:

    import torch
    from torch import nn

    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]))

        def forward(self, images):
            return images - self.mean[:, None, None]
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        if name not in ("torch.tensor", "torch.as_tensor", "torch.FloatTensor") or not call.args:
            continue
        function = source.function(call)
        if function is None or function.name not in ("forward", "training_step"):
            continue
        if not _is_constant(source, call.args[0]) or patterns.is_rare(source, call):
            continue
        if any(isinstance(parent, ast.If | ast.IfExp) for parent in source.ancestors(call)):
            continue  # a special case of the input
        parent = source.parents[call]
        moved = source.parents.get(parent) if isinstance(parent, ast.Attribute) else None
        device = argument(call, "device")
        if isinstance(moved, ast.Call) and method(moved) in ("to", "cuda"):
            device = device_argument(source, moved) or device
        if device is not None and not is_host(device):
            yield Match(call)


def _is_constant(source: Source, node: ast.expr) -> bool:
    """A list of two or more numbers in the code; a single number is cheaper to write than to store."""
    numbers = [n for n in source.walk(node) if isinstance(n, ast.Constant)]
    plain = all(isinstance(n, ast.Constant | ast.List | ast.Tuple | ast.UnaryOp) for n in source.walk(node))
    return isinstance(node, ast.List | ast.Tuple) and plain and len(numbers) > 1


RULE = Rule(
    number=412,
    name="constant-copied-per-call",
    message="Every call of forward builds this constant on the host and copies it to the device.",
    hint="Register it once with register_buffer.",
    check=check,
)
