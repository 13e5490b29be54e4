"""`ShapeCache`: results of shape rules, so that equal calls of repeated layers and steps are cheap.

torch's fake mode has a cache of its own, but building its keys takes longer than everything else here. A call
is cached only if its results follow from the shapes, strides, and dtypes of its inputs. Each forecast of a
worker runs in a process of its own; they pass results on in a file.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import FakeTensor, FakeTensorMode, storage_key
from pinchpoint.core.files import write_bytes

_aten = torch.ops.aten
_CPU = torch.device("cpu")
_UNCACHED_TAGS = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_UNCACHED = ("aten::resize", "aten::set_", "aten::lift", "aten::_local_scalar", "aten::equal")
_WRITES_ONLY = ("aten::_foreach_", "aten::_fused_")
_INDEX_TYPES = (torch.int64, torch.int32)
_MOST_IN_FILE = 5_000  # results
# What may be part of a key in a file, because it is equal in every process.
_PLAIN = {
    *(type(None), bool, int, float, str, list, tuple, torch.Size),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}


class _Input(NamedTuple):
    """A result that is one of the inputs: the operation wrote to it."""

    number: int


class _New(NamedTuple):
    """A new tensor, or a view of the input with this number."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    number: int | None
    offset: int


class _Uncached(Exception):
    """The call has an argument that a key cannot describe."""


class ShapeCache:
    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._results: dict[Any, Any] = {}
        self._read = 0  # results from a file
        self._is_cached: dict[Any, bool] = {}
        self._fake = compat.fake_factory(mode, _CPU)

    def call(self, func: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """The result of an operation on fake tensors. run: computes it."""
        if func.name().startswith(_WRITES_ONLY) and compat.returns_nothing(func):
            return None  # optimizers' kernels: nothing is allocated, and decomposing them takes long
        is_cached = self._is_cached.get(func)
        if is_cached is None:
            is_cached = self._is_cached[func] = _has_simple_results(func)
        if not is_cached:
            return run()
        tensors: list[FakeTensor] = []
        key: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        try:
            _describe(args, key, tensors)
            if kwargs:
                _describe(sorted(kwargs.items()), key, tensors)
        except _Uncached:
            return run()
        if func is _aten.index.Tensor and any(t.dtype not in _INDEX_TYPES for t in tensors[1:]):
            return run()
        frozen = tuple(key)
        try:
            entry = self._results.get(frozen)
        except TypeError:  # an argument that cannot be hashed
            return run()
        if entry is not None:
            return self._build(entry, tensors)
        with compat.without_cache(self._mode):  # a call like this one is not made again
            result = run()
        entry = _entry(result, tensors)
        if entry is not None:
            self._results[frozen] = entry
        return result

    def read(self, file: Path) -> None:
        """Add the results in a file, if it exists. It must be one that only pinchpoint could write."""
        if file.exists():
            for name, rest, entry in pickle.loads(file.read_bytes()):
                self._results[(_operator(name), *rest)] = entry
        self._read = len(self._results)

    def write(self, file: Path) -> None:
        """Write the results to a file, up to a limit, if there are more than were read."""
        if not self._read < min(len(self._results), _MOST_IN_FILE):
            return
        plain = [(key, entry) for key, entry in self._results.items() if _is_plain(key[1:])][:_MOST_IN_FILE]
        write_bytes(file, pickle.dumps([(key[0].name(), key[1:], entry) for key, entry in plain]))

    def _build(self, entry: Any, tensors: list[FakeTensor]) -> Any:
        if type(entry) is _New:
            empty = _aten.empty_strided.default(entry.shape, entry.stride, dtype=entry.dtype, device="meta")
            if entry.number is not None:
                storage = tensors[entry.number].untyped_storage()
                empty.set_(storage, entry.offset, entry.shape, entry.stride)  # type: ignore[call-overload]
            return self._fake(empty)
        if type(entry) is _Input:
            return tensors[entry.number]
        if type(entry) is _Nothing:
            return None
        return type(entry)(self._build(part, tensors) for part in entry)


class _Nothing(NamedTuple):
    """The operation returns nothing, or skips this result."""


def _operator(name: str) -> Any:
    """The operator with a name such as "aten::add.Tensor"."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _is_plain(parts: tuple[Any, ...]) -> bool:
    return all(part in _PLAIN if isinstance(part, type) else type(part) in _PLAIN for part in parts)


def _has_simple_results(func: Any) -> bool:
    name = func.name()
    if not name.startswith("aten::") or name.startswith(_UNCACHED):
        return False
    if func is _aten.index.Tensor:
        return True
    if any(tag in func.tags for tag in _UNCACHED_TAGS):
        return False
    # `out` arguments may be resized.
    return not any(a.is_out or (a.kwarg_only and a.alias_info is not None) for a in compat.arguments_of(func))


def _describe(values: Any, key: list[Any], tensors: list[FakeTensor]) -> None:
    """Append what the results can depend on. Types are part of it: 1, 1.0, and True are equal."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if (
                value.constant is not None
                or value.layout is not torch.strided
                or value.dtype.is_complex
                or not value.dim()  # a number among tensors has less weight in type promotion
                or value.fake_device != _CPU  # results on "meta" are rare
            ):
                raise _Uncached
            tensors.append(value)
            key += (value.shape, value.stride(), value.dtype, value.storage_offset())
        elif kind is list or kind is tuple:
            key += (kind, len(value))
            _describe(value, key, tensors)
        elif isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise _Uncached
        else:
            key += (kind, value)


def _entry(result: Any, tensors: list[FakeTensor]) -> Any:
    """How to build a result again, or None if that is not simple."""
    if result is None:
        return _Nothing()
    if isinstance(result, (list, tuple)):
        parts = [_entry(part, tensors) for part in result]
        fresh = [
            storage_key(part.untyped_storage())
            for part, how in zip(result, parts, strict=True)
            if type(how) is _New and how.number is None
        ]
        if any(part is None for part in parts) or len(set(fresh)) < len(fresh):
            return None
        return parts if isinstance(result, list) else tuple(parts)
    if type(result) is not FakeTensor or result.layout is not torch.strided or result.dtype.is_complex:
        return None
    if result.fake_device != _CPU:
        return None
    for index, tensor in enumerate(tensors):
        if result is tensor:
            return _Input(index)
    key = storage_key(result.untyped_storage())
    shared = [i for i, t in enumerate(tensors) if storage_key(t.untyped_storage()) == key]
    new = _New(
        tuple(result.shape),
        result.stride(),
        result.dtype,
        shared[0] if shared else None,
        int(result.storage_offset()),
    )
    if not shared and (new.offset or result.untyped_storage().nbytes() != _span_bytes(new)):
        return None
    return new


def _span_bytes(new: _New) -> int:
    if 0 in new.shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(new.shape, new.stride, strict=True))
    return (last + 1) * new.dtype.itemsize
