"""The number of edges of a chunk whose training takes a given number of bytes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pinchpoint.core.units import MIB
from pinchpoint.kit.edges.edge_mlp import FlatPath, arithmetic, edge_bytes, fixed_bytes, flat_path
from pinchpoint.planning.chunk_size import largest_chunk

# The bytes of a chunk with chunk="auto": larger chunks save little time, smaller ones little memory.
CHUNK_BYTES = 96 * MIB
# The same for kernels with weights in shared memory, with their buffers: fewer chunks have fewer launches.
TILE_CHUNK_BYTES = 140 * MIB
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

    The default budget is 96 MiB; 140 MiB for kernels with weights in shared memory; a fiftieth of the GPU's
    memory if that is more and the network does not run as one kernel. by_hand: assume the backward pass of
    `flat`; autograd saves more bytes per edge.
    paths: `flat_path` of `mlp` and of `attention`, if they are known. moves: whether what the network reads
    needs a gradient.
    """
    paths = paths or {}
    path = (paths.get("mlp") or flat_path(mlp, like=x)) if by_hand else None
    if budget_bytes is None:
        budget_bytes = TILE_CHUNK_BYTES if path is not None and path.in_tiles else CHUNK_BYTES
        if x.is_cuda and (path is None or path.name != "one kernel"):
            total = torch.cuda.get_device_properties(x.device).total_memory
            budget_bytes = max(budget_bytes, int(CHUNK_SHARE * total))
    dims = x.shape[1] + y.shape[1]
    width = dims + (f.shape[1] if f is not None and transform.startswith("nonlinear") else 0)
    wide = max(x.element_size(), 4)
    own = 0
    if edge_attr is not None:  # also while both parts of the inputs are joined
        own += width * wide
        width += edge_attr.shape[1]
    if path is not None and path.in_tiles and attention is None and weights != "max":
        assert path.layers is not None
        linear, dtype = [layer for layer, _ in path.layers], arithmetic(x)
        inputs = own + width * wide
        # Its inputs and their gradient, its row, and the gradient and the values of the kernel; later its
        # values, its row, and what sorts the sources. A weight per edge stays all the time.
        outputs, of_inputs = linear[-1].out_features * dtype.itemsize, inputs if moves else 0
        own = of_inputs + max(inputs + 2 * outputs, outputs + _SORT_BYTES)
        own += 4 + (0 if weights in ("mean", "sum") else 2 * wide)
        return largest_chunk(
            fixed_bytes=fixed_bytes(path, like=x),
            bytes_per_point=own,
            budget_bytes=budget_bytes,
        )
    # Inputs, row and sorted sources; the gradients of the kernel and of f; and what the network itself needs.
    own += width * wide + _INDEX_BYTES + 2 * (f.shape[1] if f is not None else 1) * wide
    own += edge_bytes(mlp, width, like=x, path=path)
    if weights == "max":  # the values, their largest and the comparison, beside the gradient
        own += 4 * (f.shape[1] if f is not None else 1) * wide
    score_path = None
    if attention is not None:
        score_path = (paths.get("attention") or flat_path(attention, like=x)) if by_hand else None
        own += edge_bytes(attention, x.shape[1], like=x, path=score_path) + 4 * wide
    fixed = 0 if path is None else fixed_bytes(path, like=x)
    fixed += 0 if score_path is None else fixed_bytes(score_path, like=x)
    return largest_chunk(fixed_bytes=fixed, bytes_per_point=own, budget_bytes=budget_bytes)
