"""Runs kernels written in Gluon or Triton with NumPy, one program after the other, without Triton.

Layouts are ignored. Copies to shared memory happen when they are begun, or, if `is_late`, when they are
waited for. Shared memory is NaN before, so that a kernel that does not wait gives NaN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch


class _Block(np.ndarray):
    def to(self, dtype: Any) -> _Block:
        return self.astype(dtype).view(_Block)


def _block(values: Any) -> _Block:
    return np.asarray(values).view(_Block)


class _Pointer:
    def __init__(self, values: np.ndarray, at: Any = 0) -> None:
        self.values, self.at = values, at

    def __add__(self, offset: Any) -> _Pointer:
        return _Pointer(self.values, self.at + offset)

    def __getitem__(self, key: Any) -> _Pointer:
        return _Pointer(self.values, np.asarray(self.at)[key])

    def load(self, mask: Any = True) -> _Block:
        at, mask = np.broadcast_arrays(self.at, mask)
        assert at[mask].size == 0 or (at[mask].min() >= 0 and at[mask].max() < self.values.size)
        return _block(np.where(mask, self.values[np.where(mask, at, 0)], self.values.dtype.type(0)))

    def store(self, values: Any, mask: Any = True) -> None:
        at, values, mask = np.broadcast_arrays(self.at, values, mask)
        self.values[at[mask]] = values[mask]


class _Shared:
    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def index(self, at: Any) -> _Shared:
        return _Shared(self.values[int(at)])

    def slice(self, start: int, length: int, dim: int = 0) -> _Shared:
        return _Shared(self.values[(slice(None),) * dim + (slice(start, start + length),)])

    def permute(self, order: tuple[int, ...]) -> _Shared:
        return _Shared(self.values.transpose(order))

    def load(self, layout: Any) -> _Block:
        return _block(self.values.copy())


class _Kernel:
    def __init__(self, function: Callable[..., Any], state: SimpleNamespace) -> None:
        self.function, self.state = function, state

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **_: Any) -> None:
            converted = [
                _Pointer(one.view(-1).numpy()) if isinstance(one, torch.Tensor) else one for one in arguments
            ]
            for self.state.program in range(grid[0]):
                self.function(*converted)
                assert not self.state.copies, "the program ends before its copies do"

        return launch


def module_in_numpy(name: str, patch: pytest.MonkeyPatch, *, is_late: bool) -> Any:
    """Return a module of kernels that run with NumPy. It is not the one that `import` returns."""
    state = SimpleNamespace(program=0, copies=[])

    def copy(to: _Shared, pointer: _Pointer, mask: Any = True) -> None:
        def write() -> None:
            values, mask_here = pointer.load(mask), np.broadcast_to(mask, to.values.shape)
            to.values[mask_here] = values[mask_here]

        state.copies.append(write)
        if not is_late:
            write()

    def wait(outstanding: int) -> None:
        assert outstanding == 0, "not supported"
        for write in state.copies:
            write()
        state.copies.clear()

    def jit(function: Any = None, **_: Any) -> Any:
        return jit_with_options if function is None else _Kernel(function, state)

    def jit_with_options(function: Any) -> Any:
        return _Kernel(function, state)

    language: Any = ModuleType("triton.experimental.gluon.language")
    for layout in ("BlockedLayout", "SliceLayout", "SwizzledSharedLayout"):
        setattr(language, layout, lambda *_: None)
    vars(language).update(
        constexpr=lambda value: value,
        float32=np.float32,
        int64=np.int64,
        static_range=range,
        program_id=lambda _: _block(state.program),
        arange=lambda start, stop, _: _block(np.arange(start, stop)),
        zeros=lambda shape, dtype, _: _block(np.zeros(shape, dtype)),
        where=lambda condition, one, other: (
            _block(np.where(condition, one, other).astype(np.float32))
            if isinstance(one, float)
            else _block(np.where(condition, one, other))
        ),
        minimum=lambda one, other: _block(np.minimum(one, other)),
        maximum=lambda one, other: _block(np.maximum(one, other)),
        load=lambda pointer: pointer.load(),
        store=lambda pointer, values, mask: pointer.store(values, mask),
        convert_layout=lambda values, _: values,
        thread_barrier=lambda: None,
        allocate_shared_memory=lambda dtype, shape, _: _Shared(np.full(shape, np.nan, dtype)),
    )
    ampere: Any = ModuleType("triton.experimental.gluon.language.nvidia.ampere")
    ampere.async_copy = SimpleNamespace(
        async_copy_global_to_shared=copy, commit_group=lambda: None, wait_group=wait
    )
    gluon: Any = ModuleType("triton.experimental.gluon")
    gluon.jit, gluon.constexpr_function, gluon.language = jit, lambda function: function, language
    experimental: Any = ModuleType("triton.experimental")
    experimental.gluon = gluon
    triton: Any = ModuleType("triton")
    triton.jit, triton.language = jit, _triton_language(state)
    with patch.context() as inside:
        for module in (triton, triton.language, experimental, gluon, language, ampere):
            inside.setitem(sys.modules, module.__name__, module)
        spec = find_spec(name)
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def _triton_language(state: SimpleNamespace) -> Any:
    """Return what kernels of bricks need of `triton.language`."""
    language: Any = ModuleType("triton.language")
    vars(language).update(
        constexpr=lambda value: value,
        float32=np.float32,
        float64=np.float64,
        int32=np.int32,
        int64=np.int64,
        static_range=range,
        program_id=lambda _: _block(state.program),
        arange=lambda start, stop: _block(np.arange(start, stop)),
        zeros=lambda shape, dtype: _block(np.zeros(shape, dtype)),
        fma=lambda one, other, more: one * other + more,
        cumsum=lambda values, axis: _block(np.cumsum(values, axis)),
        sum=lambda values, axis: _block(np.sum(values, axis)),
        load=lambda pointer, mask=True, other=0: pointer.load(mask),
        store=lambda pointer, values, mask=True: pointer.store(values, mask),
    )
    return language
