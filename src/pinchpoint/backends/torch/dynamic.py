"""Operations whose output size or value depends on the data: masks, nonzero, unique, item().

Exact where real values are at hand (shadows). Elsewhere the count comes from a calibration: the
same code run small with every value real, one power law per source line. Without one, asking
for a count raises `NeedsCalibration`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.laws import Bound, Law
from pinchpoint.backends.torch.ledger import Site
from pinchpoint.backends.torch.unknown import DataNumber, NeedsCalibration

_aten = torch.ops.aten
_MASKED = {
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._unsafe_index.Tensor,
    _aten._index_put_impl_.default,
}  # fmt: skip
_COUNTED = {
    _aten.nonzero.default, _aten.masked_select.default, _aten._unique2.default, _aten.unique_consecutive.default,
    _aten.unique_dim.default, _aten.repeat_interleave.Tensor, _aten.bincount.default,
}  # fmt: skip
_FILLS = {
    _aten.index_put.default: _aten.masked_fill.Tensor,
    _aten.index_put_.default: _aten.masked_fill_.Tensor,
    _aten._index_put_impl_.default: _aten.masked_fill_.Tensor,
}
_ALIKE = {_aten.equal.default: True, _aten.allclose.default: True}

# What a yes-no question most likely answers in a healthy run, by the operation that made it.
_LIKELY_TRUE = ("isfinite", "all", "logical_not")


@dataclass
class Dynamic:
    """Answers data-dependent questions for one run.

    calibrating: carry real values for everything and note what each line gives.
    assume: without a law, take half of what is possible (mid), nothing (low) or all (high).
    """

    laws: Mapping[str, Law] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    bound: Bound = "mid"
    calibrating: bool = False
    assume: bool = False
    size: int = 0  # points of the run, which values read with item() are fitted against
    unknown: str = ""  # the line that last read a count nobody knows
    largest: tuple[int, str] = (0, "")  # the largest count worked out from the data, and its line
    used: bool = False  # some answer was not exact
    seen: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    seen_values: dict[str, list[float]] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _memo: dict[tuple[Any, ...], tuple[Any, int]] = field(default_factory=dict)

    def shadow_limit(self, usual: int) -> int:
        return 2**62 if self.calibrating else usual

    def handles(self, func: Any) -> bool:
        return func in _COUNTED or func in _MASKED or func in _ALIKE or func is _aten._local_scalar_dense.default

    def run(
        self, func: Any, args: Any, kwargs: Any, *, shadow: Any, plain: Callable[..., Any], site: Site,
        shadow_of: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> Any:  # fmt: skip
        where = f"{site.file}:{site.line}"
        if func is _aten._local_scalar_dense.default:
            return self._value(args[0], shadow, where)
        if func in _ALIKE:
            return _ALIKE[func] if shadow is None else shadow
        if func in _MASKED:
            return self._masked(func, args, kwargs, plain, where, shadow_of)
        return self._counted(func, args, kwargs, shadow, plain, where)

    # -- values -----------------------------------------------------------------------------

    def _value(self, tensor: torch.Tensor, shadow: Any, where: str) -> Any:
        key = f"{where}:item"
        if shadow is not None:
            if self.calibrating:
                self.seen_values.setdefault(key, []).append(float(shadow))
                if isinstance(shadow, int) and not isinstance(shadow, bool):
                    self.seen.setdefault(key, []).append((self.size, shadow))
            return shadow
        self.used = self.used or tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
        if self.size and key in self.laws and not tensor.dtype.is_floating_point:
            return self.laws[key].count(self.size, self.bound)
        if key in self.values:
            value = self.values[key]
            return value if tensor.dtype.is_floating_point else (bool(value) if tensor.dtype is torch.bool else int(value))
        if tensor.dtype.is_floating_point:
            return 1.0
        if tensor.dtype is torch.bool:
            made_by = getattr(tensor, "_pinchpoint_op", "")
            return any(word in made_by for word in _LIKELY_TRUE)
        return 1  # from C++, which takes plain numbers only; Python's item() asks `unknown_number` first

    def unknown_number(self, tensor: torch.Tensor, real: torch.Tensor | None, where: str) -> DataNumber | None:
        """What item() gives for a count that neither data nor a calibration can tell."""
        whole = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.dtype is not torch.bool
        key = f"{where}:item"
        if not whole or real is not None or key in self.laws or key in self.values:
            return None
        self.unknown = key
        return DataNumber(key)

    # -- counts -----------------------------------------------------------------------------

    def _count(self, tensor: torch.Tensor, real: int | None, key: str, most: int) -> int:
        """How many: known, remembered for the same mask, by law, or unknown."""
        if real is not None:
            if self.calibrating:
                for name in (key, self._turn(key)):
                    self.seen.setdefault(name, []).append((most, real))
            elif real > self.largest[0]:
                self.largest = (real, key)
            return real
        storage = tensor.untyped_storage()
        memo = (compat.storage_key(storage), tensor.storage_offset(), tuple(tensor.shape), tensor._version)
        known = self._memo.get(memo)
        if known is not None and known[0]() is storage:
            return known[1]
        self.used = True
        law = self.laws.get(self._turn(key)) or self.laws.get(key)
        if law is not None:
            # Never none where there may be some: an empty tensor is a case of its own for many losses.
            least = min(1, law.count(most, "high"), most)
            count = max(least, min(law.count(most, self.bound), most))
        elif self.assume:
            count = {"low": min(1, most), "mid": -(-most // 2), "high": most}[self.bound]
        else:
            raise NeedsCalibration(key)
        self._memo[memo] = (weakref.ref(storage), count)
        return count

    def _turn(self, key: str) -> str:
        """The line's own number of this asking: a network's mask changes from step to step."""
        self._turns[key] = self._turns.get(key, 0) + 1
        return f"{key}#{self._turns[key]}"

    def _masked(self, func: Any, args: Any, kwargs: Any, plain: Any, where: str, shadow_of: Any) -> Any:
        """Boolean masks become index tensors, as the GPU's kernels make them."""
        if func in _FILLS and _is_fill(args, kwargs):
            # Writing one number where a mask is true needs no count: CUDA fills in place.
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
            real = shadow_of(index)
            count = self._count(index, None if real is None else int(real.count_nonzero()), f"{where}:mask", index.numel())
            found = plain(_aten.new_empty.default, index, [count, index.dim()], dtype=torch.int64)
            indices += [plain(_aten.select.int, found, 1, axis) for axis in range(index.dim())]
        return plain(func, args[0], indices, *args[2:], **kwargs)

    def _counted(self, func: Any, args: Any, kwargs: Any, shadow: Any, plain: Any, where: str) -> Any:
        tensor = args[0]
        name = func.name().split("::")[1].split(".")[0]
        key = f"{where}:{name}"
        if func is _aten.repeat_interleave.Tensor:
            size = kwargs.get("output_size") or (args[1] if len(args) > 1 else None)
            if size is None:
                size = self._count(tensor, None if shadow is None else shadow.shape[0], key, 16 * tensor.numel())
            return plain(_aten.new_empty.default, tensor, [size], dtype=tensor.dtype)
        if func is _aten.bincount.default:
            least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
            count = max(least, self._count(tensor, None if shadow is None else shadow.shape[0], key, tensor.numel()))
            return plain(_aten.new_empty.default, tensor, [count], dtype=torch.int64)
        if func is _aten.nonzero.default:
            count = self._count(tensor, None if shadow is None else shadow.shape[0], key, tensor.numel())
            return plain(_aten.new_empty.default, tensor, [count, tensor.dim()], dtype=torch.int64)
        if func is _aten.masked_select.default:
            count = self._count(args[1], None if shadow is None else shadow.shape[0], key, args[1].numel())
            return plain(_aten.new_empty.default, tensor, [count])
        return self._unique(func, args, kwargs, shadow, plain, key)

    def _unique(self, func: Any, args: Any, kwargs: Any, shadow: Any, plain: Any, key: str) -> Any:
        tensor = args[0]
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        dim = given.get("dim")
        most = tensor.numel() if dim is None else tensor.shape[dim]
        real = None if shadow is None else shadow[0].shape[0 if dim is None else dim]
        count = self._count(tensor, real, key, most)
        shape = [count] if dim is None else [*tensor.shape[:dim], count, *tensor.shape[dim + 1 :]]
        inverse = list(tensor.shape) if dim is None else [most]
        return (
            plain(_aten.new_empty.default, tensor, shape),
            plain(_aten.new_empty.default, tensor, inverse if given.get("return_inverse") else [0], dtype=torch.int64),
            plain(_aten.new_empty.default, tensor, [count] if given.get("return_counts") else [0], dtype=torch.int64),
        )


def _is_fill(args: Any, kwargs: Any) -> bool:
    """One mask over the leading dimensions, one value, no accumulation."""
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    indices = args[1]
    return not accumulate and len(indices) == 1 and indices[0].dtype is torch.bool and args[2].numel() == 1
