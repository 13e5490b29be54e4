"""Which MLPs have kernels, on which GPUs, and what is known about them, for `tile_mlp` and `wide_mlp`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from pinchpoint.kit.edges.tile_kernels import tested

Capability = tuple[int, int]
# The numbers by which the kernels know the activations.
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.SiLU: 2, nn.ReLU: 3, nn.Tanh: 4}
_GELU, GELU_BY_TANH = 1, 5
HOPPER = (9, 0)  # the compute capability of the H200, on which the plans are timed
# Shared memory of one program by compute capability; on others, layers run one by one.
SHARED_BYTES = {HOPPER: 227 * 2**10, (8, 0): 163 * 2**10, (8, 6): 99 * 2**10, (8, 9): 99 * 2**10}
NO_KERNELS = "The kernels are for GPUs of compute capability 8.0, 8.6, 8.9 and 9.0 alone."
MIN_TILE = 16  # the narrowest tile of the matrix units
WITHOUT_BIAS = " without bias"  # follows an activation in the table of tested networks
_TESTED_TRITON = "3.6."
_MOST_FAST_INPUTS = 32  # padded; with more, the networks that were timed were slower than eager


def activation_code(act: nn.Module) -> int | None:
    """The number by which the kernels know an activation; None if they do not."""
    if type(act) is nn.GELU:
        return GELU_BY_TANH if act.approximate == "tanh" else _GELU
    return _ACTIVATIONS.get(type(act))


def disorder(parts: list[nn.Module]) -> str | None:
    """Why these modules are not an MLP as the kernels know them, a sentence; None if they are."""
    linear: list[Any] = parts[0::2]
    if len(parts) < 3 or len(parts) % 2 == 0 or any(type(layer) is not nn.Linear for layer in linear):
        return "The MLP does not alternate linear layers and activations, with a linear layer at both ends."
    if any(above.in_features != below.out_features for below, above in pairwise(linear)):
        return "The widths of two layers do not match."  # torch itself will raise the error
    if len({layer.bias is None for layer in linear}) > 1:
        return "Some linear layers have a bias, and others do not."
    if None in (codes := {activation_code(act) for act in parts[1::2]}):
        return "An activation is not GELU, SiLU, ReLU or tanh."
    return "The activations differ." if len(codes) > 1 else None


def is_compared(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels of modules that `refusal` does not refuse were compared with float64 beforehand."""
    if not was_tested_on(device):
        return False
    linear: list[Any] = parts[0::2]
    name = activation_name(parts[1]) + ("" if linear[0].bias is not None else WITHOUT_BIAS)
    return name in tested.NETWORKS.get(dtype_name(dtype), {}).get(_shape(parts), ())


def _shape(parts: list[nn.Module]) -> tuple[int, int, int, int]:
    """A network's shape in the tables: padded width and number of its hidden layers, padded ends."""
    linear: list[Any] = parts[0::2]
    return (
        pad_width(max(layer.out_features for layer in linear[:-1])),
        len(linear) - 1,
        pad_width(linear[0].in_features + 1),
        pad_width(linear[-1].out_features),
    )


def was_tested_on(device: torch.device) -> bool:
    """Whether kernels were compared on such a GPU as this Triton compiles them."""
    return torch.cuda.get_device_capability(device) == HOPPER and _triton_version().startswith(_TESTED_TRITON)


def compiled_misfit(widths: list[int], dtype: torch.dtype, capability: Capability) -> str | None:
    """The same of any network on a GPU of another compute capability, for which it was compiled."""
    table = tested.COMPILED[(8, 9) if capability == (8, 6) else capability]  # the same PTX and shared memory
    name = "float32" if dtype is torch.float32 else "bfloat16"
    most_inputs, most_outputs = table[name].get((pad_width(max(widths[1:-1])), len(widths) - 2), (0, 0))
    if pad_width(widths[0] + 1) <= most_inputs and pad_width(widths[-1]) <= most_outputs:
        return None
    return (
        f"Its kernels do not fit into the shared memory of a GPU of compute capability {_text(capability)}."
    )


def slowness(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> str:
    """A sentence on how much slower than eager a supported network was on an H200; "" if it was not.

    On other GPUs: that it is not known.
    """
    if (capability := torch.cuda.get_device_capability(device)) != HOPPER:
        return f"Its kernels were not timed on a GPU of compute capability {_text(capability)}."
    known = tested.SLOWER.get("float32" if dtype is torch.float32 else "bfloat16", {})
    shape = _shape(parts)
    if (ratio := known.get(shape)) is not None:
        return f"On an H200, a network of this size took {ratio:.2f} times as long as with eager."
    ratios = [own for (*_, inputs, _), own in known.items() if inputs > _MOST_FAST_INPUTS]
    if shape[2] > _MOST_FAST_INPUTS and ratios:
        times = f"{max(ratios):.2f} times as long as with eager"
        return f"On an H200, networks with as many inputs took up to {times}."
    return ""


def _text(capability: Capability) -> str:
    return ".".join(map(str, capability))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def activation_name(act: nn.Module) -> str:
    by_tanh = getattr(act, "approximate", "none") == "tanh"
    return f"{type(act).__name__} by tanh" if by_tanh else type(act).__name__


def pad_width(width: int) -> int:
    """The width of the tile of the matrix units that holds `width` columns."""
    return max(MIN_TILE, 1 << (width - 1).bit_length())


@cache
def _triton_version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""
