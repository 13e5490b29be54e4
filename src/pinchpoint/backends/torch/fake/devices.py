"""Devices: `place_of` tells the simulated device from the host, `check_same_device` refuses mixed inputs.

The simulation keeps every tensor on the CPU for torch, so torch's own check of devices cannot find tensors of
the host among those of the GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.ledger import is_library_file
from pinchpoint.core import failures
from pinchpoint.core.errors import CannotFake

CUDA = torch.device("cuda:0")
_ORIGIN = "_pinchpoint_origin"  # attribute of a tensor of the host: the Python instruction that made it

# Operations that take tensors of both devices: copies, lengths and offsets that CUDA kernels read on the
# host, lists that are worked through one by one, and those that look at nothing but a shape.
_MIXED = (
    "aten::copy",
    "aten::_to_copy",
    "aten::_foreach_",
    "aten::_fused_",
    "aten::_amp_",
    "aten::set_",
    "aten::_ctc_loss",
    "aten::_cudnn_",
    "aten::_use_cudnn_",
    "aten::_thnn_",
    "aten::_pack_padded_sequence",
    "aten::_pad_packed_sequence",
    "aten::_nested_",
    "aten::_scaled_dot_product_",
    "aten::_flash_attention_",
    "aten::_efficient_attention_",
    "aten::_sparse_",
    "aten::resize_as",
    "aten::is_s",
    "aten::expand_as",
)
# The first argument, and the third if there is one, must be on one device; indices may be on the host.
_INDEXING = ("aten::index.Tensor", "aten::_unsafe_index", "aten::index_put", "aten::_index_put_impl")


def at_user_line() -> str:
    """The text " at FILE:LINE" for the user's line that is running, or "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_library_file(frame.f_code.co_filename):
            return f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def cuda_device() -> torch.device:
    """The simulated device: that of the process's local rank in a parallel job."""
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if "WORLD_SIZE" in os.environ else CUDA
    )


def device_count() -> int:
    """The devices that torch reports. Only one is simulated, but a rank sees those of its machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if "WORLD_SIZE" in os.environ else 1


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
    if kind == "cuda" and index > 0 and index != cuda_device().index:
        raise CannotFake(
            f"The script uses cuda:{index}{at_user_line()}; "
            "pinchpoint does not support more than one GPU, cuda:0, yet.",
            hint="Predict each GPU's share of the model separately, or one rank of DistributedDataParallel.",
        )
    return {"cuda": "device", "cpu": "host"}.get(kind)


def mark_origin(result: Any, func: Any, args: tuple[Any, ...], caller: FrameType) -> Any:
    """Remember the Python instruction that made a tensor of the host; see `check_same_device`.

    A view comes from where the tensor comes from that it shows.
    """
    origin = getattr(args[0], _ORIGIN, None) if func.is_view else (hash(caller), caller.f_lasti)
    for tensor in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(tensor, torch.Tensor):
            setattr(tensor, _ORIGIN, origin)
    return result


def check_same_device(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    on_device: Callable[[object], bool],
    caller: FrameType,
) -> None:
    """Raise torch's error if an operation of the GPU has an input on the host that CUDA does not accept.

    A tensor without dimensions is accepted, as in torch, and so are indices. A tensor of the host that the
    same Python instruction has made comes from torch's C++ code, which creates it on the device of its input:
    on a GPU, it is there. caller: the frame that called the operation.
    """
    name = func.name()
    if name.startswith(_MIXED) or compat.is_foreign(name):
        return
    now = hash(caller), caller.f_lasti

    def is_wrong(value: object) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.dim() > 0
            and not on_device(value)
            and getattr(value, _ORIGIN, None) != now
        )

    indexes = name.startswith(_INDEXING)
    if indexes and is_wrong(args[0]) and any(on_device(index) for index in args[1]):
        raise IndexError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    for number, value in enumerate((*args, *kwargs.values())):
        if indexes and number == 1:
            continue
        if any(map(is_wrong, value)) if isinstance(value, (list, tuple)) else is_wrong(value):
            names = [*compat.argument_names(func)[: len(args)], *kwargs]
            raise RuntimeError(
                f"{failures.SAME_DEVICE}, but got {names[number]} is on cpu, different from other tensors "
                f"on cuda:0 (when checking argument in method {name})"
            )
