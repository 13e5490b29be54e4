"""`ScriptArray`: stands for a device array of a script. It has a shape and a dtype, but no values.

To JAX it is a tracer of a `ScriptTrace` that is current while the whole script runs, so `jax.numpy`, `grad`,
`jit`, `isinstance(x, jax.Array)` and the libraries on top accept it. Where an ordinary tracer refuses to be
read, a ScriptArray answers: the session that it belongs to decides what a value that nobody computed is.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.program import bytes_of
from pinchpoint.backends.jax.script.ledger import Buffer
from pinchpoint.backends.jax.script.recipes import Recipe


class ScriptArray(compat.Tracer):
    """A device array without values. `buffer`: its storage; arrays that share storage share the buffer.

    sharding: its devices and its part on each; committed: whether the script chose them.
    """

    __slots__ = ("buffer", "committed", "recipe", "script_trace", "session", "sharding")

    def __init__(
        self,
        trace: Any,
        aval: Any,
        buffer: Buffer,
        recipe: Recipe,
        sharding: Any,
        committed: bool = False,
    ) -> None:
        super().__init__(trace, aval)
        self.sharding, self.committed = sharding, committed
        self.session, self.script_trace = trace.session, trace
        self.buffer = buffer
        self.recipe = recipe

    def to_concrete_value(self) -> Any:
        """The values of a mask, which JAX needs for `x[mask]`, if they can be computed."""
        return self.session.known_value(self) if self.shape and self.dtype == bool else None

    # Reading values
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = self.session.read(self)
        return np.array(values, dtype=dtype)

    def __float__(self) -> float:
        return float(self.session.read_number(self))

    def __complex__(self) -> complex:
        return complex(self.session.read_number(self))

    def __int__(self) -> int:
        return int(self.session.read_number(self))

    def __index__(self) -> int:
        return self.session.read_size(self)

    def __bool__(self) -> bool:
        return self.session.read_bool(self)

    def item(self, *args: Any) -> Any:
        return self.session.read_number(self[args] if args else self.reshape(()))

    def tolist(self) -> Any:
        return self.item() if not self.shape else np.asarray(self).tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        return np.asarray(self).tobytes(order)

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __repr__(self) -> str:
        return f"Array(shape={self.shape}, dtype={self.dtype})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return jax.numpy.array(self, copy=True)

    # What a computed array offers beside its values
    def block_until_ready(self) -> Any:
        return self

    def copy_to_host_async(self) -> None:
        return None

    def is_ready(self) -> bool:
        return True

    def is_deleted(self) -> bool:
        return self.buffer.deleted

    def delete(self) -> None:
        self.buffer.free()

    def devices(self) -> set[Any]:
        return set(self.sharding.device_set)

    @property
    def device(self) -> Any:
        """The only device, or the sharding over several, as in JAX."""
        devices = self.devices()
        return next(iter(devices)) if len(devices) == 1 else self.sharding

    @property
    def _committed(self) -> bool:
        return self.committed

    @property
    def is_fully_addressable(self) -> bool:
        return bool(self.sharding.is_fully_addressable)

    @property
    def is_fully_replicated(self) -> bool:
        return bool(self.sharding.is_fully_replicated)

    @property
    def nbytes(self) -> int:
        return bytes_of(self.aval)

    def on_device_size_in_bytes(self) -> int:
        return self.buffer.bytes * len(self.buffer.devices)

    def part_on(self, device: Any) -> Any:
        return self.script_trace.shard(self, device)

    def addressable_data(self, index: int) -> Any:
        return self.addressable_shards[index].data

    @property
    def addressable_shards(self) -> list[Any]:
        if len(self.devices()) == 1:
            return [_Shard(self, self, self.device, tuple(slice(None) for _ in self.shape), 0)]
        replicas: dict[Any, int] = {}
        shards = []
        for device, index in self.sharding.devices_indices_map(self.shape).items():
            key = tuple((part.start, part.stop) for part in index)
            replicas[key] = replicas.get(key, -1) + 1
            shards.append(_Shard(self, None, device, index, replicas[key]))
        return shards

    global_shards = addressable_shards


class _Shard:
    """The part of an array on one device."""

    def __init__(self, array: ScriptArray, data: Any, device: Any, index: Any, replica_id: int) -> None:
        self._array, self._data = array, data
        self.device, self.index, self.replica_id = device, index, replica_id

    @property
    def data(self) -> Any:
        if self._data is None:
            self._data = self._array.part_on(self.device)
        return self._data
