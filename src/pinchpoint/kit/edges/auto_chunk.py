"""The number of edges of a chunk whose training takes a given number of bytes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pinchpoint.core.units import MIB
from pinchpoint.kit.edges import tile_mlp, wide_mlp
from pinchpoint.kit.edges.edge_mlp import FlatPath, arithmetic, edge_bytes, fixed_bytes, flat_path
from pinchpoint.planning.chunk_size import largest_chunk

# The bytes of a chunk with chunk="auto": larger chunks save little time, smaller ones little memory.
CHUNK_BYTES = 96 * MIB
# The same for the kernels of `tile_mlp` and `wide_mlp`, with their buffers: fewer chunks have fewer launches.
TILE_CHUNK_BYTES = 136 * MIB
# With more than 21 channels a chunk takes less, because the outputs and gradients of the points take more:
# 3/8 MiB a channel for 1 M edges, if each point has 32.
_WITH_POINTS_BYTES, _CHANNEL_BYTES = 144 * MIB, 3 * MIB // 8
_LEAST_ROOM = 16 * MIB  # for what grows with the edges, if the buffers of two networks take the rest
# The share of a GPU's memory if each layer launches its own kernels: the launches cost as much time as
# 50,000 edges.
CHUNK_SHARE = 0.02
_SORT_BYTES = 32  # a sorted source with its position (4 + 8), and the temporary memory of the sort (20)
_INDEX_BYTES = 4 + _SORT_BYTES  # with a row


def auto_chunk(
    mlp: nn.Module,
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    *,
    transform: str = "linear",
    weights: str = "mean",
    attention: nn.Module | None = None,
    edge_attr: Tensor | None = None,
    budget_bytes: int | None = None,
    by_hand: bool = True,
    paths: dict[str, FlatPath] | None = None,
    moves: bool = True,
) -> int:
    """The number of edges for which a training chunk takes at most `budget_bytes`.

    The default budget is that of `chunk_bytes`. by_hand: assume the backward pass of `flat`; autograd saves
    more bytes per edge. paths: `flat_path` of `mlp` and of `attention`, if they are known. moves: whether
    what the network reads needs a gradient.
    """
    paths = paths or {}
    likes = inputs_of(x, y, f if transform.startswith("nonlinear") else None, edge_attr)
    like, score_like = likes["mlp"], likes["attention"]
    path = (paths.get("mlp") or flat_path(mlp, like=like)) if by_hand else None
    score_path = None
    if attention is not None:
        score_path = (paths.get("attention") or flat_path(attention, like=score_like)) if by_hand else None
    if budget_bytes is None:
        budget_bytes = chunk_bytes(path, score_path, likes)
    fixed = _fixed_bytes(path, score_path, likes)
    width, wide, own = like.shape[1], max(like.element_size(), 4), 0
    flat = path is not None and path.is_flat and (score_path or path).is_flat
    of_input = path.input_dtype(like).itemsize if flat and path is not None else wide
    if edge_attr is not None:  # also while both parts of the inputs are joined
        own += (width - edge_attr.shape[1]) * of_input
    if flat and path is not None and path.layers is not None:
        outputs = path.layers[-1][0].out_features * arithmetic(like).itemsize
        # A weight per edge and its gradient.
        of_weights = 0 if weights in ("mean", "sum", "max") else 2 * wide
        overwrites = path.wide or tile_mlp.OVERWRITES
        own = _flat_bytes(own + width * of_input, outputs, moves=moves, overwrites=overwrites)
        own += of_weights + (outputs if weights == "max" and overwrites else 0)  # with the values themselves
        if attention is not None:  # vectors y - x; their gradient, also while both its parts are joined
            own += (4 if moves else 1) * x.shape[1] * wide
        size = largest_chunk(fixed_bytes=fixed, bytes_per_point=own, budget_bytes=budget_bytes)
        if path.wide:
            linear = [layer for layer, _ in path.layers]
            size = wide_mlp.even_chunk(linear, arithmetic(like), like.device, size)
        return size
    # Inputs, row and sorted sources; the gradients of the kernel and of f; and what the network itself needs.
    own += width * wide + _INDEX_BYTES + 2 * (f.shape[1] if f is not None else 1) * wide
    own += edge_bytes(mlp, width, like=like, path=path)
    if weights == "max":  # the values, their largest and the comparison, beside the gradient
        own += 4 * (f.shape[1] if f is not None else 1) * wide
    if attention is not None:
        own += edge_bytes(attention, x.shape[1], like=score_like, path=score_path) + 4 * wide
    return largest_chunk(fixed_bytes=fixed, bytes_per_point=own, budget_bytes=budget_bytes)


def inputs_of(x: Tensor, y: Tensor, f: Tensor | None, edge_attr: Tensor | None) -> dict[str, Tensor]:
    """What each network reads, without edges: (0, width). f: only if the network reads it."""
    points = torch.promote_types(x.dtype, y.dtype)
    wide = x.shape[1] + y.shape[1]
    dtype = points
    for more in (f, edge_attr):
        if more is not None:
            wide += more.shape[1]
            dtype = torch.promote_types(dtype, more.dtype)
    return {
        "mlp": x.new_empty(0, wide, dtype=dtype),
        "attention": x.new_empty(0, x.shape[1], dtype=points),
    }


def chunk_bytes(path: FlatPath | None, score_path: FlatPath | None, likes: dict[str, Tensor]) -> int:
    """The bytes of a chunk with chunk="auto", with the buffers of a fixed size.

    96 MiB; 120 to 136 MiB for the kernels of `tile_mlp` and `wide_mlp`, by the channels; a fiftieth of the
    GPU's memory if that is more and the network does not run as one kernel; and always 16 MiB more than the
    buffers. path: how the network runs; None: through autograd. score_path: the same of `attention`. likes:
    their inputs (`inputs_of`).
    """
    budget = CHUNK_BYTES
    if path is not None and path.is_flat and path.layers is not None:
        channels = path.layers[-1][0].out_features
        budget = min(TILE_CHUNK_BYTES, _WITH_POINTS_BYTES - channels * _CHANNEL_BYTES)
    device = likes["mlp"].device
    if device.type == "cuda" and (path is None or path.name != "one kernel"):
        budget = max(budget, int(CHUNK_SHARE * torch.cuda.get_device_properties(device).total_memory))
    return max(budget, _fixed_bytes(path, score_path, likes) + _LEAST_ROOM)


def _fixed_bytes(path: FlatPath | None, score_path: FlatPath | None, likes: dict[str, Tensor]) -> int:
    """Those that the networks take for any number of edges."""
    both = (path, likes["mlp"]), (score_path, likes["attention"])
    return sum(fixed_bytes(one, like=like) for one, like in both if one is not None)


def _flat_bytes(inputs: int, outputs: int, *, moves: bool, overwrites: bool) -> int:
    """Bytes per edge in the backward pass of kernels that store nothing between layers for all edges.

    First its inputs and their gradient, its row, and the gradient and the values of the kernel; later its
    values, its row, and what sorts the sources. overwrites: the values replace the gradient of the kernel,
    and the gradient of the inputs replaces these.
    """
    of_inputs = inputs if moves else 0
    network = inputs + outputs if overwrites else of_inputs + inputs + 2 * outputs
    return 4 + max(network, of_inputs + outputs + _SORT_BYTES)
