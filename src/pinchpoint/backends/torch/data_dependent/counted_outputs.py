"""Outputs whose size is a count: elements that a mask selects, unique values, repeated rows, alignments.

The outputs are allocated as CUDA's kernels do it; `Counts` knows how many elements they have.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from pinchpoint.backends.torch.data_dependent.decisions import counting_line
from pinchpoint.backends.torch.data_dependent.nonzero_counts import NonzeroCounts, is_fill
from pinchpoint.backends.torch.data_dependent.shadow_values import Shadows
from pinchpoint.backends.torch.kernels.library_buffers import arguments_by_name, wrapped_dim

_aten = torch.ops.aten
INDEXING = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._unsafe_index.Tensor,
    _aten._index_put_impl_.default,
}
COUNTING = {
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_consecutive.default,
    _aten.unique_dim.default,
    _aten.repeat_interleave.Tensor,
    _aten.bincount.default,
}
ALIGNMENTS = {_aten._ctc_loss.default, _aten._ctc_loss.Tensor}
# Boxes that suppression keeps, by name: torchvision is not imported here.
KEPT_BOXES = {"torchvision::nms"}
_FILLS = {
    _aten.index_put.default: _aten.masked_fill.Tensor,
    _aten.index_put_.default: _aten.masked_fill_.Tensor,
    _aten._index_put_impl_.default: _aten.masked_fill_.Tensor,
}


class Counts(Protocol):
    """Provides counts; `Dynamic` does."""

    calibrating: bool
    nonzero: NonzeroCounts

    def count(
        self, tensor: torch.Tensor, real: int | None, key: str, most: int, known_limit: int | None = None
    ) -> int: ...

    def unlimited(self, tensor: torch.Tensor, real: int | None, key: str) -> int: ...


def index(counts: Counts, func: Any, args: Any, kwargs: Any, plain: Any, where: str, shadows: Shadows) -> Any:
    """Replace boolean masks by index tensors, as the GPU's kernels do."""
    if func in _FILLS and is_fill(args, kwargs):
        # Writing one number where a mask is true needs no count, because CUDA fills in place.
        mask = args[1][0]
        for _ in range(args[0].dim() - mask.dim()):
            mask = plain(_aten.unsqueeze.default, mask, -1)
        value = args[2] if args[2].dim() == 0 else plain(_aten.view.default, args[2], [])
        return plain(_FILLS[func], args[0], mask, value)
    indices: list[Any] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
            continue
        real = shadows.real(index)
        count = counts.count(
            index,
            None if real is None else int(real.count_nonzero()),
            f"{counting_line(where)}:mask",
            index.numel(),
            counts.nonzero.most(index),
        )
        positions = plain(_aten.new_empty.default, index, [count, index.dim()], dtype=torch.int64)
        indices += [plain(_aten.select.int, positions, 1, axis) for axis in range(index.dim())]
    return plain(func, args[0], indices, *args[2:], **kwargs)


def rows(counts: Counts, func: Any, args: Any, kwargs: Any, shadow: Any, plain: Any, where: str) -> Any:
    tensor = args[0]
    name = func.name().split("::")[1].split(".")[0]
    key = f"{counting_line(where)}:{name}"
    if func is _aten.repeat_interleave.Tensor:
        size = kwargs.get("output_size") or (args[1] if len(args) > 1 else None)
        if size is None:
            size = counts.unlimited(tensor, None if shadow is None else shadow.shape[0], key)
        return plain(_aten.new_empty.default, tensor, [size], dtype=tensor.dtype)
    if func is _aten.bincount.default:
        least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        real = None if shadow is None else shadow.shape[0]
        # Whoever gives the number of classes has no larger value.
        count = least if real is None and least else max(least, counts.unlimited(tensor, real, key))
        return plain(_aten.new_empty.default, tensor, [count], dtype=torch.int64)
    if func.name() in KEPT_BOXES:
        count = counts.count(tensor, None if shadow is None else shadow.shape[0], key, tensor.shape[0])
        return plain(_aten.new_empty.default, tensor, [count], dtype=torch.int64)
    if func is _aten.nonzero.default:
        count = counts.count(
            tensor,
            None if shadow is None else shadow.shape[0],
            key,
            tensor.numel(),
            counts.nonzero.most(tensor),
        )
        return plain(_aten.new_empty.default, tensor, [count, tensor.dim()], dtype=torch.int64)
    if func is _aten.masked_select.default:
        count = counts.count(
            args[1],
            None if shadow is None else shadow.shape[0],
            key,
            args[1].numel(),
            counts.nonzero.most(args[1]),
        )
        return plain(_aten.new_empty.default, tensor, [count])
    return _unique(counts, func, args, kwargs, shadow, plain, key)


def align(counts: Counts, args: Any, plain: Any, where: str, shadows: Shadows) -> Any:
    """The outputs of the CTC loss: one loss per sequence, and the table of its alignments."""
    log_probs, targets, lengths = args[0], args[1], args[3]
    if not isinstance(lengths, torch.Tensor):
        lengths = real = torch.tensor(lengths)
    else:
        real = shadows.real(lengths)  # type: ignore[arg-type]
    longest = None if real is None else int(real.max())
    if longest is None and targets.dim() == 2:
        longest = targets.shape[1]  # no target is longer, and rows are usually padded to the longest
    elif longest is None or counts.calibrating:
        longest = counts.count(lengths, longest, f"{counting_line(where)}:ctc_loss", targets.numel())
    steps, batch = log_probs.shape[:2]
    return (
        plain(_aten.new_empty.default, log_probs, [batch]),
        plain(_aten.new_empty.default, log_probs, [batch, steps, 2 * longest + 1]),
    )


def _unique(counts: Counts, func: Any, args: Any, kwargs: Any, shadow: Any, plain: Any, key: str) -> Any:
    tensor = args[0]
    arguments = arguments_by_name(func, args, kwargs)
    dim = arguments.get("dim")
    if dim is not None:
        dim = wrapped_dim(dim, tensor)
    most = tensor.numel() if dim is None else tensor.shape[dim]
    if func is _aten._unique2.default and tensor.dtype is torch.bool:
        most = min(most, 2)
    real = None if shadow is None else shadow[0].shape[0 if dim is None else dim]
    count = counts.count(tensor, real, key, most)
    if dim is None:
        # CUDA allocates values and counts for as many elements as there may be, and does not shrink them.
        inverse, allocated = list(tensor.shape), most
        whole = plain(_aten.new_empty.default, tensor, [most])
        values = plain(_aten.slice.Tensor, whole, 0, 0, count)
    else:
        inverse, allocated = [most], count
        shape = [*tensor.shape[:dim], count, *tensor.shape[dim + 1 :]]
        values = plain(_aten.new_empty.default, tensor, shape)
    inverse = inverse if arguments.get("return_inverse") else [0]
    counted, allocated = (count, allocated) if arguments.get("return_counts") else (0, 0)
    whole = plain(_aten.new_empty.default, tensor, [allocated], dtype=torch.int64)
    return (
        values,
        plain(_aten.new_empty.default, tensor, inverse, dtype=torch.int64),
        plain(_aten.slice.Tensor, whole, 0, 0, counted),
    )
