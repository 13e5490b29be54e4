"""A DataLoader gives batches in ordinary memory, and they are copied to the device.

Copies from pinned memory are about twice as fast and can run beside the computation. Pass
`pin_memory=True`, and `non_blocking=True` to the copy.

Bad:

    import torch
    from torch.utils.data import DataLoader

    def train(model, dataset, optimizer, device):
        loader = DataLoader(dataset, batch_size=64, num_workers=4)
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

from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.loaders import loader_of, option
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method, receiver


def check(source: Source) -> Iterator[Match]:
    reported = set()
    for call in source.calls:
        device = device_argument(source, call) if method(call) in ("to", "cuda") else None
        if device is None or is_host(device):
            continue
        loader = loader_of(source, receiver(call))
        if loader is not None and loader not in reported and option(loader, "pin_memory") is None:
            reported.add(loader)
            yield Match(loader)


RULE = Rule(
    number=405,
    name="loader-without-pinning",
    message="The batches of this DataLoader are copied to the device from memory that is not pinned.",
    hint="Pass pin_memory=True to the loader and non_blocking=True to the copies.",
    check=check,
)
