"""A batch from pinned memory is copied to the device with a wait.

The loader pins its batches, but the copy does not use it: with `non_blocking=True` the copy runs beside the
computation, and later operations on the device still see the data.

Bad:

    import torch
    from torch.utils.data import DataLoader

    def train(model, dataset, optimizer, device):
        loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
        for inputs in loader:
            inputs = inputs.to(device)
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

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.loaders import loader_of, pins
from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method, receiver

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        device = device_argument(source, call) if method(call) in ("to", "cuda") else None
        if (
            device is None
            or is_host(device)
            or argument(call, "non_blocking") is not None
            or len(call.args) > 1
        ):
            continue
        loader = loader_of(source, receiver(call))
        if loader is not None and pins(loader):
            yield Match(call)


def _without_wait(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    from pinchpoint.rules.engine.rewriting import add_argument

    return add_argument(node, "non_blocking", "True")


RULE = Rule(
    number=410,
    name="blocking-copy",
    message="The batch is pinned, but its copy to the device waits.",
    hint="Pass non_blocking=True.",
    check=check,
    fix=Fix(_without_wait, safe=True),
)
