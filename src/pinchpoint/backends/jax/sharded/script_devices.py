"""`ScriptDevices`: the devices that a script sees, and the functions of JAX that place arrays on them.

A script with N devices sees N devices of the CPU. After `jax.distributed.initialize`, it is one process of
several, of which each has some of the devices; JAX itself still has all of them, so nothing waits for a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.script import recipes
from pinchpoint.backends.jax.script.arrays import ScriptArray
from pinchpoint.backends.patches import Patches

_DEVICE_COUNT = "jax_num_cpu_devices"


@dataclass
class ScriptDevices:
    """count: all devices; per_process: those of each process after `jax.distributed.initialize`."""

    count: int = 1
    per_process: int = 1
    processes: int = 1  # as the script sees it

    def start(self) -> None:
        """Let JAX see the devices; before it first uses one."""
        if self.count > 1:
            compat.set_device_count(self.count)

    def install(self, patches: Patches, trace: Any, notes: dict[str, None]) -> None:
        self._ignore_device_count(patches, notes)
        self._answer_processes(patches, notes)
        if self.count > 1:
            _place_arrays(patches, trace, self._process_data)

    def _ignore_device_count(self, patches: Patches, notes: dict[str, None]) -> None:
        """A script may ask for devices of the CPU, to be tried without GPUs; JAX has started by now."""

        def update(config: Any, name: str, value: Any) -> None:
            if name != _DEVICE_COUNT:
                return original(config, name, value)
            if value != self.count:
                notes[
                    f"the script asks for {value} devices of the CPU, and the forecast is for {self.count}; "
                    f"--world-size {value} gives it as many"
                ] = None
            return None

        original = patches.set(type(jax.config), "update", update)

    def _answer_processes(self, patches: Patches, notes: dict[str, None]) -> None:
        devices = jax.devices

        def initialize(*_: Any, **__: Any) -> None:
            self.processes = max(1, self.count // self.per_process)
            text = (
                f"process 0 of {self.processes} with {self.per_process} devices each; values from other "
                "processes are those of this one"
                if self.processes > 1
                else "the only process; --world-size and --local-world-size give the devices of the whole job"
            )
            notes[f"jax.distributed.initialize: predicted as {text}"] = None

        def local_devices(process_index: int | None = None, *args: Any, **options: Any) -> list[Any]:
            each = self.count // self.processes
            first = (process_index or 0) * each
            return list(devices(*args[:1], **{k: v for k, v in options.items() if k == "backend"}))[
                first : first + each
            ]

        patches.set(jax.distributed, "initialize", initialize)
        patches.set(jax.distributed, "shutdown", lambda: None)
        if hasattr(jax.distributed, "is_initialized"):
            patches.set(jax.distributed, "is_initialized", lambda: self.processes > 1)
        patches.set(jax, "process_count", lambda *_, **__: self.processes)
        patches.set(jax, "process_index", lambda *_, **__: 0)
        patches.set(jax, "process_indices", lambda *_, **__: list(range(self.processes)))
        patches.set(jax, "local_devices", local_devices)
        patches.set(
            jax, "local_device_count", lambda *args, **options: len(local_devices(None, *args, **options))
        )
        patches.set(multihost_utils, "sync_global_devices", lambda *_, **__: None)
        patches.set(multihost_utils, "assert_equal", lambda *_, **__: None)
        patches.set(multihost_utils, "broadcast_one_to_all", lambda tree, *_, **__: tree)

    def _process_data(self, sharding: Any, data: Any, shape: Sequence[int] | None) -> tuple[int, ...]:
        """The shape of an array of which `data` is the part of this process."""
        if shape is not None:
            return tuple(shape)
        if self.processes == 1:
            return tuple(data.shape)
        each = self.count // self.processes
        indices = sharding.devices_indices_map((sharding.num_devices,) * len(data.shape))
        sizes = []
        for axis, size in enumerate(data.shape):
            parts: dict[int, set[int | None]] = {}
            for device, index in indices.items():
                parts.setdefault(device.id // each, set()).add(index[axis].start)
            sizes.append(size * len({frozenset(starts) for starts in parts.values()}))
        return tuple(sizes)


def _place_arrays(patches: Patches, trace: Any, process_data: Callable[..., tuple[int, ...]]) -> None:
    """Let the functions that build arrays on several devices return arrays without values."""

    def place(shape: Sequence[int], dtype: Any, sharding: Any, value: Any = None) -> Any:
        aval = compat.aval_of(jax.ShapeDtypeStruct(tuple(shape), dtype))
        array = trace.array(aval, recipes.constant(value), sharding, True)
        trace.session.rest("make_array", [array])
        return array

    def full(shape: Any, fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
        if sharding is None or compat.is_inside_program() or not _is_divided(sharding):
            return originals["full"](shape, fill_value, dtype, sharding=sharding)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = jax.numpy.result_type(fill_value) if dtype is None else dtype
        return place(shape, jax.dtypes.canonicalize_dtype(dtype), sharding)

    def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None, sharding: Any = None) -> Any:
        mine = x.sharding if isinstance(x, ScriptArray) and x.committed else None
        is_like = sharding is None and mine is not None and (shape is None or tuple(shape) == tuple(x.shape))
        if not is_like or compat.is_inside_program() or not _is_divided(mine):
            return originals["full_like"](x, fill_value, dtype, shape, sharding)
        return place(x.shape, x.dtype if dtype is None else jax.dtypes.canonicalize_dtype(dtype), mine)

    def from_callback(shape: Any, sharding: Any, data_callback: Any, dtype: Any = None, **_: Any) -> Any:
        if dtype is None:
            indices = sharding.devices_indices_map(tuple(shape))
            dtype = data_callback(indices[next(iter(sharding.device_set))]).dtype
        return place(shape, jax.dtypes.canonicalize_dtype(dtype), sharding)

    def from_process(sharding: Any, local_data: Any, global_shape: Any = None, **_: Any) -> Any:
        def one(data: Any, sharding: Any = sharding) -> Any:
            data = data if hasattr(data, "shape") else np.asarray(data)
            shape = process_data(sharding, data, global_shape)
            dtype = jax.dtypes.canonicalize_dtype(data.dtype)
            return place(shape, dtype, sharding, data if data.shape == shape else None)

        if isinstance(sharding, jax.sharding.Sharding):
            return jax.tree_util.tree_map(one, local_data)
        return jax.tree_util.tree_map(one, local_data, sharding)

    def from_arrays(shape: Any, sharding: Any, arrays: Sequence[Any], **_: Any) -> Any:
        return place(shape, arrays[0].dtype, sharding)

    originals = compat.replace_full(patches, full, full_like)
    compat.replace_array_makers(
        patches,
        {
            "make_array_from_callback": from_callback,
            "make_array_from_process_local_data": from_process,
            "make_array_from_single_device_arrays": from_arrays,
        },
    )


def _is_divided(sharding: Any) -> bool:
    return len(getattr(sharding, "device_set", ())) > 1 if _is_concrete(sharding) else False


def _is_concrete(sharding: Any) -> bool:
    return isinstance(sharding, jax.sharding.Sharding) and not isinstance(
        getattr(sharding, "mesh", None), jax.sharding.AbstractMesh
    )
