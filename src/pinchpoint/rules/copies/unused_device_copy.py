"""A tensor is copied to the device and never used.

Labels and metadata that the model does not read take time on the bus and memory on the device. Copy only
what is used.

Bad:

    import torch

    @torch.inference_mode()
    def predict(model, batches, device):
        outputs = []
        for inputs, targets in batches:
            inputs = inputs.to(device)
            targets = targets.to(device)
            outputs.append(model(inputs))
        return torch.cat(outputs)

Good:

    import torch

    @torch.inference_mode()
    def predict(model, batches, device):
        outputs = []
        for inputs, targets in batches:
            inputs = inputs.to(device)
            outputs.append(model(inputs))
        return torch.cat(outputs)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver
from pinchpoint.rules.engine.values import is_module


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        device = device_argument(source, call) if method(call) in ("to", "cuda") else None
        parent = source.parents[call]
        if (
            device is None
            or is_host(device)
            or not isinstance(parent, ast.Assign)
            or len(parent.targets) != 1
        ):
            continue
        target, function = parent.targets[0], source.function(call)
        if not isinstance(target, ast.Name) or function is None or is_module(source, receiver(call)):
            continue
        if isinstance(receiver(call), ast.Call):
            continue  # built here; creating it may be the point
        if "locals()" in source.text or any(
            isinstance(n, ast.Global | ast.Nonlocal) for n in source.walk(function)
        ):
            continue
        reads = [n for n in source.loads(function, target.id) if not source.inside(n, parent)]
        if (not [n for n in reads if n.lineno > call.lineno] and not source.loops(call)) or not reads:
            yield Match(call, {"name": target.id})


RULE = Rule(
    number=411,
    name="unused-device-copy",
    message="`{name}` is copied to the device and never used.",
    hint="Remove the copy.",
    check=check,
)
