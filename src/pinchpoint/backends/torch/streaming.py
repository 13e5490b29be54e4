"""`open_lane`: choose the device and the lane on which `stream` runs a function of torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pinchpoint.backends.base import resolve_device
from pinchpoint.backends.stream_backend import Function, Lane, Points
from pinchpoint.backends.torch import measurement
from pinchpoint.backends.torch.streaming_cpu import CpuLane
from pinchpoint.backends.torch.streaming_cuda import CudaLane
from pinchpoint.core.errors import BadInput


def open_lane(
    function: Function, points: Points, *, device: str, out: Any, extra: tuple[Any, ...], pad: bool
) -> Lane:
    """The lane for a device. "auto": the device of a tensor or module, otherwise CUDA if it is available."""
    for array in points.arrays:
        if not isinstance(array, (np.ndarray, Tensor)):
            raise BadInput(
                f"The points are of type {type(array).__name__}, which cannot be streamed.",
                hint="Pass numpy arrays or torch tensors.",
            )
    place = _choose_device(device, function, points)
    lane = CudaLane if place.type == "cuda" else CpuLane
    return lane(function, points, device=place, out=out, extra=extra, pad=pad)


def _choose_device(device: str, function: Function, points: Points) -> torch.device:
    if device == "auto":
        tensors = [
            array for array in points.arrays if isinstance(array, Tensor) and array.device.type != "cpu"
        ]
        weights = next(function.parameters(), None) if isinstance(function, nn.Module) else None
        owner = tensors[0] if tensors else weights
        if owner is not None:
            device = str(owner.device)
    kind, _, number = device.partition(":")
    place = torch.device(resolve_device(kind, measurement))  # type: ignore[arg-type]
    if place.type == "cuda":
        if number and not (number.isdigit() and int(number) < torch.cuda.device_count()):
            raise BadInput(
                f"The device {device!r} does not exist on this machine.",
                hint=f"Use cuda:0 to cuda:{torch.cuda.device_count() - 1}.",
            )
        return torch.device("cuda", int(number) if number else torch.cuda.current_device())
    return place
