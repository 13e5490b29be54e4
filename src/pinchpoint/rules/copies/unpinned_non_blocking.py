"""A copy with non_blocking=True starts from memory that is not pinned.

From ordinary memory the driver first copies into a pinned buffer of its own, and the host waits for that:
`non_blocking` has no effect. Pin the source with `pin_memory=True` in the loader or `.pin_memory()`.

Bad:

    import torch
    from torch.utils.data import DataLoader

    def train(model, dataset, optimizer, device):
        loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=False)
        for inputs in loader:
            inputs = inputs.to(device, non_blocking=True)
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()

Good:

    import torch
    from torch.utils.data import DataLoader

    def train(model, dataset, optimizer, device):
        loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
        for inputs in loader:
            inputs = inputs.to(device, non_blocking=True)
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.loaders import loader_of, pins
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, is_constant, method, receiver, root
from pinchpoint.rules.engine.values import CREATION


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if method(call) not in ("to", "cuda") or not is_constant(argument(call, "non_blocking"), True):
            continue
        device = device_argument(source, call)
        if device is None or is_host(device):
            continue
        loader = loader_of(source, receiver(call))
        if (loader is not None and pins(loader) is False) or _is_fresh(source, receiver(call)):
            yield Match(call, {"name": ast.unparse(root(receiver(call)))[:40]})


def _is_fresh(source: Source, value: ast.expr) -> bool:
    """Whether a tensor was made on the host just now and not pinned."""
    if isinstance(value, ast.Name):
        store = source.binding(value)
        assigned = source.assigned_value(store) if isinstance(store, ast.Name) else None
        return assigned is not None and not isinstance(assigned, ast.Name) and _is_fresh(source, assigned)
    if not isinstance(value, ast.Call):
        return False
    name = source.name(value.func)
    if name == "torch.from_numpy":
        return True
    created = name.startswith("torch.") and name.rpartition(".")[2] in CREATION and name.count(".") == 1
    here = argument(value, "device") is None and argument(value, "pin_memory") is None
    return created and here and not any(keyword.arg is None for keyword in value.keywords)


RULE = Rule(
    number=402,
    name="unpinned-non-blocking",
    message="`non_blocking=True` has no effect: the memory that is copied is not pinned.",
    hint="Pass pin_memory=True to the loader, or call .pin_memory() on the tensor.",
    check=check,
)
