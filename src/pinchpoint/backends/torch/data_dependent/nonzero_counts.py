"""`NonzeroCounts`: at most how many elements of a tensor with unknown values are nonzero.

A mask is often zeros into which a known number of elements is written: `mask[kept] = True` has at most as
many true elements as `kept` has entries, whatever they are. The bound belongs to a storage and therefore to
all its views; a write that is not understood removes it.

Some masks share what they can count: `levels == 2` and `levels == 3` have together at most as many true
elements as `levels` has elements, and the slices of a one-hot tensor as many as the tensor.

The indices of a sort are 0 to n - 1 in an unknown order: `order < k` has *k* true elements in every row.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import FakeTensor, storage_key
from pinchpoint.backends.torch.data_dependent.count_laws import Bound

_SHARE = "_pinchpoint_share"
_HITS = "_pinchpoint_hits"
_ORDER = "_pinchpoint_order"
# How many of 0 to n - 1 compare true with a number, which is clamped to 0 to n.
_ORDERED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "aten::lt": lambda number, n: number.ceil().clamp(0, n),
    "aten::le": lambda number, n: (number.floor() + 1).clamp(0, n),
    "aten::gt": lambda number, n: n - (number.floor() + 1).clamp(0, n),
    "aten::ge": lambda number, n: n - number.ceil().clamp(0, n),
}
_CREATE = {"aten::zeros", "aten::zeros_like", "aten::new_zeros"}
_CREATE_FILLED = {"aten::full": 1, "aten::full_like": 1, "aten::new_full": 2}  # position of the value
_KEEP = {"aten::_to_copy", "aten::clone", "aten::detach", "aten::contiguous"}  # a copy of the same elements
_EITHER = {"aten::bitwise_or.Tensor", "aten::logical_or", "aten::add.Tensor", "aten::maximum"}
_BOTH = {"aten::bitwise_and.Tensor", "aten::logical_and", "aten::mul.Tensor"}
# Comparisons with a number; where they are false for zero, the result is nonzero only where the input is.
_COMPARE: dict[str, Callable[[Any], bool]] = {
    "aten::ne.Scalar": lambda number: number == 0,
    "aten::gt.Scalar": lambda number: number >= 0,
    "aten::ge.Scalar": lambda number: number > 0,
    "aten::eq.Scalar": lambda number: number != 0,
    "aten::lt.Scalar": lambda number: number <= 0,
    "aten::le.Scalar": lambda number: number < 0,
}
# A result is nonzero only where something that it is computed from is nonzero; `max.dim` also has indices.
_REDUCTIONS = {"aten::sum", "aten::any", "aten::amax", "aten::amin", "aten::max", "aten::min", "aten::prod"}
_SHRINKING_WRITES = {"aten::mul_", "aten::div_", "aten::bitwise_and_", "aten::logical_and_"}
_INDEX_PUT = {"aten::index_put_", "aten::_index_put_impl_", "aten::index_put"}
_SCATTER = {"aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_"}
Values = Callable[[torch.Tensor], "torch.Tensor | None"]


def _is_hit_list(name: str, family: str, source: torch.Tensor, args: Any, is_bounded: bool) -> bool:
    """Whether the result says which parts of a bounded tensor are not empty: a sum over it, compared."""
    if family in ("aten::sum", "aten::any"):
        return is_bounded
    return _HITS in source.__dict__ and name in _COMPARE and _COMPARE[name](args[1])


def _dim_of_sort(func: Any, args: Any, kwargs: Any) -> int:
    at = compat.argument_names(func).index("dim")
    return args[at] if at < len(args) else kwargs.get("dim", -1)


def _of_order(family: str, args: Any, values: Values) -> int | None:
    """The number of true elements if the indices of a sort are compared with one known number per row."""
    order, other = args[:2]
    dim = order.__dict__.get(_ORDER) if isinstance(order, torch.Tensor) else None
    if dim is None:
        return None
    number = values(other) if isinstance(other, torch.Tensor) else torch.tensor(other)
    rows = [*order.shape[:dim], 1, *order.shape[dim + 1 :]]
    if number is None or (number.dim() and (number.dim() != order.dim() or number.shape[dim] != 1)):
        return None
    return int(_ORDERED[family](number, order.shape[dim]).expand(rows).sum())


class Share:
    """A total that several masks divide among them. parts: how many they are, if that is known."""

    def __init__(self, total: int, parts: int | None = None) -> None:
        self.total, self.left, self.parts = total, total, parts

    def take(self, most: int, bound: Bound) -> int:
        """The count of the next mask, of at most `most` elements.

        high: the first mask has all it can have, and the others what is left. Otherwise all parts are equal;
        if their number is unknown, each has half of what is left (mid), or one (low).
        """
        least = min(1, most)
        if bound == "high":
            count = min(most, self.left)
        elif self.parts is not None:
            count = min(most, -(-self.total // self.parts))
        else:
            count = min(most, -(-self.left // 2)) if bound == "mid" else least
        return self.take_counted(count, most)

    def take_counted(self, count: int, most: int) -> int:
        """Take a count that is known from elsewhere, as far as the total allows.

        Not zero if one is possible: many programs treat an empty tensor as a special case.
        """
        count = min(count, self.left)
        self.left -= count
        return max(count, min(1, most))


class NonzeroCounts:
    """Follows operations and answers `most` and `share`; every storage has one bound."""

    def __init__(self) -> None:
        self._shares: dict[tuple[Any, ...], tuple[Any, Share]] = {}
        self._bounds: dict[int, tuple[Any, int, int]] = {}  # storage -> reference, bound, bytes per element

    def most(self, tensor: torch.Tensor) -> int | None:
        """The largest number of nonzero elements of a tensor; None if it is not limited."""
        storage = tensor.untyped_storage()
        bound = self._bounds.get(storage_key(storage))
        if bound is None or bound[0]() is not storage or bound[2] != tensor.element_size():
            return None
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        repeats = math.prod(size for size, stride in sizes if stride == 0)  # of elements of an expanded view
        return min(bound[1] * repeats, tensor.numel())

    def is_hit_list(self, mask: torch.Tensor) -> bool:
        """Whether a mask tells which parts of a total are not empty. All are taken to be: then no part has
        more than its share, and together they have the total.
        """
        return _HITS in mask.__dict__

    def share(self, mask: torch.Tensor) -> Share | None:
        """The total that this mask divides with others, if there is one."""
        share = mask.__dict__.get(_SHARE)
        if share is not None:
            return share
        whole = self._bounds.get(storage_key(mask.untyped_storage()))
        size = mask.untyped_storage().nbytes() // mask.element_size()
        if whole is None or self.most(mask) is None or mask.numel() in (0, size):
            return None
        return self._share_of(mask, whole[1], size // mask.numel())

    def _share_of(self, source: torch.Tensor, total: int, parts: int | None) -> Share:
        """One Share for all masks of a source that was not written to in between."""
        storage = source.untyped_storage()
        view = (0, ()) if parts is not None else (source.storage_offset(), tuple(source.shape))
        key = (storage_key(storage), compat.version(source), *view)
        entry = self._shares.get(key)
        if entry is None or entry[0]() is not storage:
            entry = self._shares[key] = (weakref.ref(storage), Share(total, parts))
        return entry[1]

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any, values: Values) -> None:
        """Update the bounds after an operation. values: of a tensor, if they are known."""
        name = func.name()
        family = name.split(".")[0]
        if family == "aten::sort":
            dim = _dim_of_sort(func, args, kwargs)
            setattr(out[1], _ORDER, dim % max(out[1].dim(), 1))
            return
        if compat.is_mutable(func):
            if args and isinstance(args[0], torch.Tensor):
                args[0].__dict__.pop(_ORDER, None)
            if self._bounds and args and type(args[0]) is FakeTensor:
                self._write(family, args, kwargs)
            return
        if family in _REDUCTIONS and isinstance(out, (tuple, list)):
            out = out[0]
        if type(out) is not FakeTensor or out.numel() == 0:
            return
        source = args[0] if args and type(args[0]) is FakeTensor else None
        if source is not None and _is_hit_list(name, family, source, args, self.most(source) is not None):
            setattr(out, _HITS, True)
        bound = self._of_result(name, family, args, kwargs)
        if bound is None and family in _ORDERED:
            bound = _of_order(family, args, values)
        if bound is not None:
            self._set(out, bound)
        elif name == "aten::eq.Scalar" and type(args[0]) is FakeTensor:
            setattr(out, _SHARE, self._share_of(args[0], args[0].numel(), None))

    def _of_result(self, name: str, family: str, args: Any, kwargs: Any) -> int | None:
        if family in _CREATE:
            return 0
        if family in _CREATE_FILLED:
            position = _CREATE_FILLED[family]
            return 0 if len(args) > position and args[position] == 0 else None
        if not self._bounds or not args:
            return None
        if name in _EITHER or name in _BOTH:
            if any(type(t) is not FakeTensor for t in args[:2]) or args[0].shape != args[1].shape:
                return None
            sides = [self.most(t) for t in args[:2]]
            known = [side for side in sides if side is not None]
            if name in _BOTH:
                return min(known, default=None)
            return sum(known) if len(known) == 2 else None
        if type(args[0]) is not FakeTensor:
            return None
        if name == "aten::where.self":
            return self._chosen(*args)
        if family in _REDUCTIONS and any(isinstance(side, torch.Tensor) for side in args[1:]):
            return None  # `max` of two tensors
        if family in _KEEP or family in _REDUCTIONS or (name in _COMPARE and _COMPARE[name](args[1])):
            return self.most(args[0])
        if family in _INDEX_PUT or family in _SCATTER:
            written = self._written(family, args, kwargs)
            before = self.most(args[0])
            return None if written is None or before is None else before + written
        return None

    def _chosen(self, mask: torch.Tensor, first: Any, second: Any) -> int | None:
        """The bound of `where`: elements of `first` where the mask is true, and elements of `second`."""
        sides = (mask, first, second)
        if any(type(side) is not FakeTensor or side.shape != mask.shape for side in sides):
            return None
        from_first = min(
            (most for side in (mask, first) if (most := self.most(side)) is not None), default=None
        )
        from_second = self.most(second)
        return None if from_first is None or from_second is None else from_first + from_second

    def _write(self, family: str, args: Any, kwargs: Any) -> None:
        target = args[0]
        key = storage_key(target.untyped_storage())
        bound = self._bounds.get(key)
        if bound is None:
            return
        if family == "aten::zero_":
            return
        written = self._written(family, args, kwargs)
        if written is None:
            del self._bounds[key]
        else:
            self._bounds[key] = (bound[0], bound[1] + written, bound[2])

    def _written(self, family: str, args: Any, kwargs: Any) -> int | None:
        """The number of elements that a write may make nonzero."""
        if family in _INDEX_PUT:
            return self._indexed(args[0], args[1])
        if family == "aten::index_fill_":  # since torch 2.15 also `x[index] = 1`
            slices = args[0].shape[args[1]] if args[0].dim() else 1
            return args[2].numel() * (args[0].numel() // max(slices, 1))
        if family in _SCATTER:
            return args[2].numel()
        if family in _SHRINKING_WRITES:
            return 0
        if family == "aten::masked_fill_" and not isinstance(args[2], torch.Tensor) and args[2] == 0:
            return 0
        if family == "aten::fill_":
            return 0 if args[1] is False or (isinstance(args[1], (int, float)) and args[1] == 0) else None
        if family == "aten::copy_" and type(args[1]) is FakeTensor and args[0].shape == args[1].shape:
            return self.most(args[1])
        if family == "aten::masked_fill_" and args[1].shape == args[0].shape:
            return self.most(args[1])
        return None

    def _indexed(self, target: torch.Tensor, indices: Any) -> int | None:
        used = [index for index in indices if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in used):
            most = self.most(used[0]) if len(used) == 1 else None
            return None if most is None else most * (target.numel() // max(used[0].numel(), 1))
        positions = math.prod(torch.broadcast_shapes(*[index.shape for index in used]))
        rest = [size for size, index in zip(target.shape, indices, strict=False) if index is None]
        return positions * math.prod(rest) * math.prod(target.shape[len(indices) :])

    def _set(self, tensor: torch.Tensor, bound: int) -> None:
        storage = tensor.untyped_storage()
        self._bounds[storage_key(storage)] = (weakref.ref(storage), bound, tensor.element_size())


def is_whole(tensor: torch.Tensor) -> bool:
    return (
        not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.dtype is not torch.bool
    )


def is_fill(args: Any, kwargs: Any) -> bool:
    """Whether the call has one mask over the leading dimensions, one value, and no accumulation."""
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    indices = args[1]
    return not accumulate and len(indices) == 1 and indices[0].dtype is torch.bool and args[2].numel() == 1


def has_no_mask(indices: Any) -> bool:
    return all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in indices)
