"""Walkers spread over devices, parameters on each: where every array of a run lies, and programs that keep it so.

The mesh has one axis. Sums over walkers become sums over devices by themselves; random numbers are the same on any number of
devices. Without a mesh everything lies on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pinchpoint.core.errors import BadInput
from pinchpoint.workloads.vmc.sampling import Walkers

AXIS = "walkers"
Program = TypeVar("Program", bound=Callable[..., Any])


def mesh_of(walkers: int, devices: Sequence[Any] | None = None) -> Mesh | None:
    """A mesh over these devices (all there are), or None where there is one. The walkers must divide among them."""
    found = list(jax.devices() if devices is None else devices)
    if walkers % len(found):
        raise BadInput(
            f"{walkers} walkers do not divide among {len(found)} devices",
            mend=f"take {-(-walkers // len(found)) * len(found)} walkers",
        )
    return Mesh(np.array(found), (AXIS,)) if len(found) > 1 else None


def placed(tree: Any, mesh: Mesh | None) -> Any:
    """The tree with walkers' arrays spread and all else on each device. Arrays of numpy are taken too."""
    return jax.device_put(tree) if mesh is None else jax.device_put(tree, _shardings(tree, mesh))


def placed_jit(program: Program, *, mesh: Mesh | None, donate: int = 0) -> Program:
    """The program compiled, with what it gives placed as `placed` does, so that it is compiled once for all its turns."""

    def kept(*args: Any) -> Any:
        out = program(*args)
        return out if mesh is None else jax.lax.with_sharding_constraint(out, _shardings(out, mesh))

    return jax.jit(kept, donate_argnums=donate)  # pyright: ignore[reportReturnType]


def _shardings(tree: Any, mesh: Mesh) -> Any:
    everywhere, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def of(leaf: Any) -> Any:
        return Walkers(spread, spread, everywhere) if isinstance(leaf, Walkers) else everywhere

    return jax.tree_util.tree_map(of, tree, is_leaf=lambda leaf: isinstance(leaf, Walkers))
