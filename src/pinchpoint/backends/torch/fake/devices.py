"""Where a device argument points: the one pretended device, the host, or a second card, which is refused."""

from __future__ import annotations

from typing import Any

import torch

from pinchpoint.core.errors import CannotFake

CUDA = torch.device("cuda:0")


def place_of(device: Any) -> str | None:
    """ "device", "host" or None for a device argument as users write it."""
    if device is None or isinstance(device, bool):
        return None
    if isinstance(device, int):
        kind, index = "cuda", device
    elif isinstance(device, torch.device):
        kind, index = device.type, device.index or 0
    else:
        kind, _, number = str(device).partition(":")
        index = int(number) if number.isdigit() else 0
    if kind == "cuda" and index > 0:
        raise CannotFake(
            f"cuda:{index} is asked for; one device is pretended, cuda:0",
            hint="predict each GPU's share of the model on its own, or one rank of DistributedDataParallel",
        )
    return {"cuda": "device", "cpu": "host"}.get(kind)
