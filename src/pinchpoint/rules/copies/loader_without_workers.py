"""A DataLoader loads its data in the process that trains.

Without `num_workers` every batch is read, decoded, and collated while the device waits. Give the loader a
few workers, or `num_workers=0` to say that the data is cheap to load. Datasets of tensors in memory and
files of tests are not reported.

Bad:

    import torch
    from torch.utils.data import DataLoader

    def train(model, dataset, optimizer, device):
        for inputs in DataLoader(dataset, batch_size=64, pin_memory=True):
            inputs = inputs.to(device, non_blocking=True)
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()

Good:

    import torch
    from torch.utils.data import DataLoader

    def train(model, dataset, optimizer, device):
        for inputs in DataLoader(dataset, batch_size=64, pin_memory=True, num_workers=4):
            inputs = inputs.to(device, non_blocking=True)
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from pinchpoint.rules.engine.loaders import in_memory, loaders, option, uses_device
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source


def check(source: Source) -> Iterator[Match]:
    calls = loaders(source)
    if not calls or not uses_device(source) or _is_test(source.file):
        return
    for call in calls:
        if option(call, "num_workers") is None and not in_memory(source, call):
            yield Match(call)


def _is_test(file: str) -> bool:
    """Whether a file is a test by its name or folder: its data is small."""
    path = PurePath(file)
    return path.name.startswith("test_") or path.parent.name in ("tests", "test_utils", "testing")


RULE = Rule(
    number=404,
    name="loader-without-workers",
    message="The DataLoader has no workers: the device waits while each batch is loaded.",
    hint="Pass num_workers, for example 4, or num_workers=0 if the data is cheap to load.",
    check=check,
)
