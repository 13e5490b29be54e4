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
from pinchpoint.backends.jax.script.ledger import Buffer
from pinchpoint.backends.jax.script.recipes import Recipe


class ScriptArray(compat.Tracer):
    """A device array without values. `buffer`: its storage; arrays that share storage share the buffer."""

    __slots__ = ("buffer", "recipe", "session")

    def __init__(self, trace: Any, aval: Any, buffer: Buffer, recipe: Recipe) -> None:
        super().__init__(trace, aval)
        self.session = trace.session
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
        return {self.device}

    @property
    def device(self) -> Any:
        return jax.devices()[0]

    @property
    def sharding(self) -> Any:
        return jax.sharding.SingleDeviceSharding(self.device)

    @property
    def committed(self) -> bool:
        return False

    @property
    def is_fully_addressable(self) -> bool:
        return True

    @property
    def is_fully_replicated(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        return self.buffer.bytes

    def on_device_size_in_bytes(self) -> int:
        return self.buffer.bytes

    def addressable_data(self, index: int) -> Any:
        return self

    @property
    def addressable_shards(self) -> list[Any]:
        return [_Shard(self)]

    global_shards = addressable_shards


class _Shard:
    """The only shard of an array on one device."""

    replica_id = 0

    def __init__(self, array: ScriptArray) -> None:
        self.data, self.device = array, array.device
        self.index = tuple(slice(None) for _ in array.shape)
