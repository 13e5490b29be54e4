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
from pinchpoint.rules.engine.loaders import dataset_of, loader_of
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver
from pinchpoint.rules.engine.values import is_module


def check(source: Source) -> Iterator[Match]:
    yield from _unread_keys(source)
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


def _unread_keys(source: Source) -> Iterator[Match]:
    """`{key: value.to(device) for key, value in batch.items()}` where the file never reads one of the
    keys."""
    for moved in source.all(ast.DictComp):
        value = moved.value
        if not isinstance(value, ast.Call) or method(value) not in ("to", "cuda") or moved.generators[0].ifs:
            continue
        device = device_argument(source, value)
        loader = loader_of(source, receiver(value))
        if device is None or is_host(device) or loader is None:
            continue
        read = {
            node.slice.value for node in source.all(ast.Subscript) if isinstance(node.slice, ast.Constant)
        }
        read |= {
            call.args[0].value
            for call in source.calls
            if call.args and isinstance(call.args[0], ast.Constant)
        }
        unread = [key for key in _keys(source, loader) if key not in read]
        if read and unread and not _is_unpacked(source):
            yield Match(moved, {"name": unread[0]})


def _keys(source: Source, loader: ast.Call) -> list[str]:
    """The keys of the samples of a loader's dataset, where the file defines it and they can be read."""
    dataset = dataset_of(source, loader)
    for node in source.walk(dataset) if dataset is not None else ():
        function = source.function(node)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict) and function is not None:
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            if function.name == "__getitem__" and len(keys) == len(node.value.keys):
                return [key for key in keys if isinstance(key, str)]
    return []


def _is_unpacked(source: Source) -> bool:
    """Whether a batch may be read by names that do not show: `model(**batch)`, `batch.values()`."""
    return any(keyword.arg is None for call in source.calls for keyword in call.keywords) or any(
        method(call) == "values" for call in source.calls
    )


RULE = Rule(
    number=411,
    name="unused-device-copy",
    message="`{name}` is copied to the device and never used.",
    hint="Remove the copy.",
    check=check,
)
