"""Weights are loaded to the CPU and then moved to the device.

`torch.load(path, map_location="cpu")` followed by `.to(device)` reads the file into host memory and copies
it from there. Build the model on the device and load with `map_location=device`, or with `mmap=True`, so
that each tensor is copied once.

Bad:

    import torch

    def restore(model, path, device):
        weights = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(weights)
        return model.to(device)

Good:

    import torch

    def restore(model, path, device):
        model = model.to(device)
        weights = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict(weights)
        return model
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method, receiver


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        loads = source.name(call.func) == "torch.load" and is_host(argument(call, "map_location", 1))
        if loads and _is_moved(source, call):
            yield Match(call)


def _is_moved(source: Source, load: ast.Call) -> bool:
    """Whether what was loaded goes to a device later in the same function."""
    parent = source.parents[load]
    scope = source.function(load) or source.tree
    moved = [
        call
        for call in patterns.method_calls(source, scope, "to", "cuda")
        if call.lineno >= load.lineno
        and (device := device_argument(source, call)) is not None
        and not is_host(device)
        and source.function(call) is source.function(load)
    ]
    if not moved:
        return False
    if any(receiver(call) is load for call in moved):
        return True
    names = set()
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        names.add(parent.targets[0].id)
    # model.load_state_dict(weights), then model.to(device)
    for call in patterns.method_calls(source, scope, "load_state_dict"):
        used = {n.id for arg in call.args for n in source.walk(arg) if isinstance(n, ast.Name)}
        if call.lineno >= load.lineno and (used & names or source.inside(load, call)):
            names.add(ast.unparse(receiver(call)))
    return any(ast.unparse(receiver(call)) in names and method(call) for call in moved)


RULE = Rule(
    number=401,
    name="load-then-move",
    message="The weights are loaded into host memory first and then copied to the device.",
    hint="Move the model to the device first and pass `map_location=device`.",
    check=check,
)
