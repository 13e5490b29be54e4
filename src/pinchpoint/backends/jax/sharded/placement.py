"""`Placement`: where the arrays of a script are, if it runs on several devices, and how programs divide them.

A program runs on one device, or XLA partitions it: if an argument is on several devices, or if the program or
the mesh around it names shardings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.program import bytes_of
from pinchpoint.backends.jax.sharded.partitioning import Argument, Partition, partition


class Placement:
    """The devices of a script and the programs over several of them, each partitioned once."""

    def __init__(self) -> None:
        self._partitions: dict[Any, tuple[Partition, Any]] = {}
        self._jitted: dict[Any, Any] = {}
        self._meshes: dict[int, tuple[bool, Any]] = {}  # id of a jaxpr -> whether it names a mesh, the jaxpr

    def default(self) -> Any:
        """The sharding of an array that the script does not place."""
        device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        return jax.sharding.SingleDeviceSharding(
            device if isinstance(device, jax.Device) else jax.devices()[0]
        )

    def partition(self, args: Sequence[Any], params: dict[str, Any]) -> Partition | None:
        """The partition of a call of a compiled function; None if it runs on one device."""
        shardings = [self.sharding_of(arg) for arg in args]
        committed = [s for arg, s in zip(args, shardings, strict=True) if is_committed(arg) and s is not None]
        named = [s for s in (*params["in_shardings"], *params["out_shardings"]) if _is_concrete(s)]
        devices = {device for s in (*committed, *named) for device in s.device_set}
        if len(devices) < 2 and _mesh_size(params["ctx_mesh"]) < 2 and not self._names_mesh(params["jaxpr"]):
            return None
        described: list[Argument] = [
            (compat.aval_of(arg), sharding, is_committed(arg), isinstance(arg, np.ndarray))
            for arg, sharding in zip(args, shardings, strict=True)
        ]
        key = (
            id(params["jaxpr"]),
            tuple((s, c) for _, s, c, _ in described),
            params["in_shardings"],
            params["out_shardings"],
            tuple(params["donated_invars"]),
            params["ctx_mesh"],
        )
        if key not in self._partitions:
            self._partitions[key] = partition(described, params), params["jaxpr"]
        return self._partitions[key][0]

    def jitted(self, primitive: Any, params: dict[str, Any]) -> Any:
        """A compiled function of one operation."""
        key: Any = (primitive, tuple(sorted(params.items(), key=lambda item: item[0])))
        try:
            hash(key)
        except TypeError:
            key = (primitive, str(params))
        if key not in self._jitted:
            self._jitted[key] = jax.jit(lambda *args: primitive.bind(*args, **params))
        return self._jitted[key]

    def _names_mesh(self, jaxpr: Any) -> bool:
        if id(jaxpr) not in self._meshes:
            self._meshes[id(jaxpr)] = _names_mesh(jaxpr.jaxpr), jaxpr
        return self._meshes[id(jaxpr)][0]

    def sharding_of(self, arg: Any) -> Any:
        """The sharding of an array; None for a value on the host."""
        return getattr(arg, "sharding", None) if isinstance(arg, jax.Array) else None


def is_committed(arg: Any) -> bool:
    """Whether the script chose the devices of an array, so that programs must run there."""
    return bool(arg.committed) if isinstance(arg, jax.Array) else True


def sharding_for(device: Any) -> Any:
    """The sharding that is meant by the second argument of `jax.device_put`; None if it names none."""
    if isinstance(device, jax.Device):
        return jax.sharding.SingleDeviceSharding(device)
    device = getattr(device, "sharding", device)  # of a Format
    return device if isinstance(device, jax.sharding.Sharding) and _is_concrete(device) else None


@cache
def device_numbers(sharding: Any) -> tuple[int, ...]:
    return tuple(sorted(device.id for device in sharding.device_set))


def shard_bytes(aval: Any, sharding: Any) -> int:
    """Bytes of an array on each of its devices."""
    size = bytes_of(aval)
    if not size or len(sharding.device_set) < 2:
        return size
    return size * math.prod(sharding.shard_shape(aval.shape)) // math.prod(aval.shape)


def divided_arguments(
    partition: Partition, args: Sequence[Any], buffers: Sequence[Any]
) -> tuple[list[Any], int]:
    """The arguments of a partitioned program: buffers, or bytes per device of host arrays.

    Also returns the bytes per device of arrays that JAX copies for the call, because the program divides them
    in another way, such as an array on one device that all of them need.
    """
    divided: list[Any] = []
    copied = 0
    for i, (arg, buffer) in enumerate(zip(args, buffers, strict=True)):
        sharding, aval = partition.in_shardings.get(i), compat.aval_of(arg)
        if isinstance(buffer, int):
            divided.append(0 if sharding is None else shard_bytes(aval, sharding))
            continue
        divided.append(buffer)
        if sharding is not None and not arg.sharding.is_equivalent_to(sharding, len(aval.shape)):
            copied += shard_bytes(aval, sharding)
    return divided, copied


def _is_concrete(sharding: Any) -> bool:
    return isinstance(sharding, jax.sharding.Sharding) and not isinstance(
        getattr(sharding, "mesh", None), jax.sharding.AbstractMesh
    )


def _mesh_size(mesh: Any) -> int:
    return math.prod(mesh.shape.values()) if mesh is not None and mesh.shape else 1


def _names_mesh(jaxpr: Any) -> bool:
    """Whether a program divides its values over a mesh of several devices."""
    return any(
        compat.mesh_size(eqn) > 1 or any(_names_mesh(inner) for inner in compat.inner_jaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def single_program(args: Sequence[Any]) -> tuple[Any, bool]:
    """Where a program on one device leaves its results: with its committed arguments, if there are any."""
    for arg in args:
        if isinstance(arg, jax.Array) and is_committed(arg):
            return jax.sharding.SingleDeviceSharding(next(iter(arg.devices()))), True
    return None, False
