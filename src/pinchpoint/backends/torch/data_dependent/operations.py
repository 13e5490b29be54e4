"""Operations whose output size or value depends on the data: masks, nonzero, unique, item(), numpy().

Exact where real values are at hand (shadows). Elsewhere the count comes from a calibration: the
same code run small with every value real, one power law per source line. Without one, asking
for a count raises `NeedsCalibration`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.data_dependent.count_laws import Bound, Law, resampled
from pinchpoint.backends.torch.data_dependent.unknown_values import DataFloat, DataNumber, NeedsCalibration
from pinchpoint.backends.torch.ledger import Site

_aten = torch.ops.aten
_MASKED = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._unsafe_index.Tensor,
    _aten._index_put_impl_.default,
}
_COUNTED = {
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_consecutive.default,
    _aten.unique_dim.default,
    _aten.repeat_interleave.Tensor,
    _aten.bincount.default,
}
_FILLS = {
    _aten.index_put.default: _aten.masked_fill.Tensor,
    _aten.index_put_.default: _aten.masked_fill_.Tensor,
    _aten._index_put_impl_.default: _aten.masked_fill_.Tensor,
}
_ALIKE = {_aten.equal.default: True, _aten.allclose.default: True}

# What a yes-no question most likely answers in a healthy run, by the operation that made it.
_LIKELY_TRUE = ("isfinite", "all", "logical_not")

_SAMPLED = 512  # values kept of an array that was read, of each of a line's first _TURNS readings
_TURNS = 64
_NAMED_COUNT = 100  # a smaller number read by a script is more likely a class or an index: it has no range


@dataclass
class Dynamic:
    """Answers data-dependent questions for one run.

    calibrating: carry real values for everything and note what each line gives.
    assume: without a law, take half of what is possible (mid), nothing (low) or all (high).
    guess: take every unknown number that is read to be this one, to see whether it matters.
    """

    laws: Mapping[str, Law] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, list[float]] = field(default_factory=dict)
    bound: Bound = "mid"
    calibrating: bool = False
    assume: bool = False
    guess: int | None = None
    size: int = 0  # points of the run, which values read with item() are fitted against
    most: Callable[[], int] = lambda: 1  # without a size: the largest dimension seen so far
    unknown: str = ""  # the line that last read a count nobody knows
    largest: tuple[int, str] = (0, "")  # the largest count worked out from the data, and its line
    seen: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    seen_values: dict[str, list[float]] = field(default_factory=dict)
    seen_samples: dict[str, list[float]] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _memo: dict[tuple[Any, ...], tuple[Any, int]] = field(default_factory=dict)

    def shadow_limit(self, usual: int) -> int:
        return 2**62 if self.calibrating else usual

    def handles(self, func: Any) -> bool:
        return (
            func in _COUNTED or func in _MASKED or func in _ALIKE or func is _aten._local_scalar_dense.default
        )

    def run(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        *,
        shadow: Any,
        plain: Callable[..., Any],
        site: Site,
        shadow_of: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> Any:
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
                if isinstance(shadow, int) and not isinstance(shadow, bool) and shadow >= 0:
                    self.seen.setdefault(key, []).append((self._points(), shadow))
            return shadow
        if not _is_whole(tensor):
            if key in self.values:
                return bool(self.values[key]) if tensor.dtype is torch.bool else self.values[key]
            made_by = getattr(tensor, "_pinchpoint_op", "")
            return any(word in made_by for word in _LIKELY_TRUE) if tensor.dtype is torch.bool else 1.0
        return self._number(key, key)

    def _number(self, key: str, turn: str) -> int:
        """A whole number that neither data nor arithmetic can tell: by law, as it was, guessed, or unknown."""
        law = self.laws.get(turn) or self.laws.get(key)
        value = self.values.get(turn, self.values.get(key))
        if law is not None and (self.size or (self.bound != "mid" and (value or 0) >= _NAMED_COUNT)):
            return law.count(self._points(), self.bound)
        if value is not None:
            return int(value)
        if self.guess is not None:
            return self.guess
        if self.calibrating:
            return 1  # of a host tensor too large to be made
        if self.assume:
            most = self.size or self.most()
            return {"low": 1, "mid": -(-most // 2), "high": most}[self.bound]
        raise NeedsCalibration(key)

    def _points(self) -> int:
        """What numbers are fitted against. A script has no size: its own run is the only one."""
        return max(self.size, 1)

    def number(
        self,
        tensor: torch.Tensor,
        real: torch.Tensor | None,
        plain: Callable[[], Any],
        line: Callable[[], str],
    ) -> Any:
        """What item() gives Python. plain: torch's own answer; line: the line that is running when it is called.

        A whole number that nobody knows is one to log, not to use; a float may be logged, and counted by int().
        """
        known = real is not None and not self.calibrating
        if _is_whole(tensor) and tensor.numel() == 1 and real is None and not self.calibrating:
            key = f"{line()}:item"
            if key not in self.laws and key not in self.values and self.guess is None and not self.assume:
                self.unknown = key
                return DataNumber(key)
        value = plain()
        return (
            value
            if known or type(value) is not float
            else DataFloat(value, lambda count: self._whole(count, line()))
        )

    def _whole(self, count: int, where: str) -> int:
        """A float became a count at this line, `count` if its value is right."""
        key = f"{where}:int"
        turn = self._turn(key)
        if not self.calibrating:
            return self._number(key, turn)
        for name in (key, turn):
            self.seen_values.setdefault(name, []).append(count)
            if count >= 0:
                self.seen.setdefault(name, []).append((self._points(), count))
        return count

    def array(
        self, tensor: torch.Tensor, real: np.ndarray[Any, Any] | None, dtype: Any, where: str
    ) -> np.ndarray[Any, Any] | None:
        """What numpy() and tolist() give: the data, or what they were in a calibration; None for floats nobody knows."""
        key = f"{where}:array"
        turn = self._turn(key)
        counted = tensor.dtype is torch.bool or _is_whole(tensor)
        if real is not None:
            if self.calibrating:
                self._sample(real, counted, key, turn)
            return real
        shape, size = tuple(tensor.shape), tensor.numel()
        sample = self.samples.get(turn) or self.samples.get(key)
        if sample:
            law = self.laws.get(turn) or self.laws.get(key)
            return resampled(sample, law, dtype, size, self._points(), self.bound).reshape(shape)
        if counted and not (self.calibrating or self.assume):
            if self.guess is None:
                raise NeedsCalibration(key)
            return (np.arange(size) % self.guess).astype(dtype).reshape(shape)
        return None

    def _sample(self, real: np.ndarray[Any, Any], counted: bool, key: str, turn: str) -> None:
        if np.iscomplexobj(real):
            return
        flat = real.reshape(-1)
        some = flat[:: -(-len(flat) // _SAMPLED) or 1].astype(np.float64).tolist()
        for name in (key, turn) if self._turns[key] <= _TURNS else (key,):
            self.seen_samples[name] = some
            if counted:
                total = int(np.abs(flat.astype(np.int64)).sum())
                self.seen.setdefault(name, []).append(
                    (len(flat) if flat.dtype == np.bool_ else self._points(), total)
                )

    def learned(self) -> dict[str, Any]:
        """What a calibration found, for `laws.known`."""
        return {"seen": self.seen, "values": self.seen_values, "samples": self.seen_samples}

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
        memo = (
            compat.storage_key(storage),
            tensor.storage_offset(),
            tuple(tensor.shape),
            compat.version(tensor),
        )
        known = self._memo.get(memo)
        if known is not None and known[0]() is storage:
            return known[1]
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
            count = self._count(
                index, None if real is None else int(real.count_nonzero()), f"{where}:mask", index.numel()
            )
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
                size = self._count(
                    tensor, None if shadow is None else shadow.shape[0], key, 16 * tensor.numel()
                )
            return plain(_aten.new_empty.default, tensor, [size], dtype=tensor.dtype)
        if func is _aten.bincount.default:
            least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
            count = max(
                least, self._count(tensor, None if shadow is None else shadow.shape[0], key, tensor.numel())
            )
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
        names = compat.argument_names(func)
        given = dict(zip(names, args, strict=False)) | kwargs
        dim = given.get("dim")
        most = tensor.numel() if dim is None else tensor.shape[dim]
        real = None if shadow is None else shadow[0].shape[0 if dim is None else dim]
        count = self._count(tensor, real, key, most)
        shape = [count] if dim is None else [*tensor.shape[:dim], count, *tensor.shape[dim + 1 :]]
        inverse = list(tensor.shape) if dim is None else [most]
        return (
            plain(_aten.new_empty.default, tensor, shape),
            plain(
                _aten.new_empty.default,
                tensor,
                inverse if given.get("return_inverse") else [0],
                dtype=torch.int64,
            ),
            plain(
                _aten.new_empty.default,
                tensor,
                [count] if given.get("return_counts") else [0],
                dtype=torch.int64,
            ),
        )


def _is_whole(tensor: torch.Tensor) -> bool:
    return (
        not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.dtype is not torch.bool
    )


def _is_fill(args: Any, kwargs: Any) -> bool:
    """One mask over the leading dimensions, one value, no accumulation."""
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    indices = args[1]
    return not accumulate and len(indices) == 1 and indices[0].dtype is torch.bool and args[2].numel() == 1
