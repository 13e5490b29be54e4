"""`place_of`: whether a device argument means the simulated device or the host; a second GPU is refused."""

from __future__ import annotations

import sys
from typing import Any

import torch

from pinchpoint.backends.torch.ledger import is_library_file
from pinchpoint.core.errors import CannotFake

CUDA = torch.device("cuda:0")


def at_user_line() -> str:
    """The text " at FILE:LINE" for the user's line that is running, or "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_library_file(frame.f_code.co_filename):
            return f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def place_of(device: Any) -> str | None:
    """Return "device", "host" or None for a device argument as users write it."""
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
            f"The script uses cuda:{index}{at_user_line()}; "
            "pinchpoint does not support more than one GPU, cuda:0, yet.",
            hint="Predict each GPU's share of the model separately, or one rank of DistributedDataParallel.",
        )
    return {"cuda": "device", "cpu": "host"}.get(kind)
