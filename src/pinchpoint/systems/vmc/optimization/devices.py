"""The devices of a run: where its arrays lie, the programs that keep them there, and the memory they take.

Walkers are spread over the devices, parameters are copied to each. The mesh has one axis. Sums over walkers become
sums over devices automatically, and random numbers are the same on any number of devices. Without a mesh everything
lies on one device.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.backends.jax import measurement
from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.optimization.sampling import Walkers

AXIS = "walkers"
Program = TypeVar("Program", bound=Callable[..., Any])


@dataclass(frozen=True)
class Host:
    """Devices of one kind. name: cpu or cuda."""

    name: str
    devices: tuple[Any, ...]

    def mesh(self, walkers: int) -> Mesh | None:
        """Over all devices; None where there is one."""
        return mesh_of(walkers, self.devices)

    def sharing(self, walkers: int) -> Host:
        """With as many of the devices as have equal shares of the walkers."""
        count = max(count for count in range(1, len(self.devices) + 1) if walkers % count == 0)
        return Host(self.name, self.devices[:count])

    def peak_bytes(self) -> int | None:
        """Peak allocated on CUDA since this process began; on a CPU the most it was ever resident with."""
        if self.name == "cuda":
            return measurement.peaks("cuda").allocated_bytes
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


@contextmanager
def on(device: str, *, precision: str) -> Iterator[Host]:
    """Within, arrays are made on that device, and float64 exists where it is asked for; both are as before after it."""
    name = resolve_device(device, backend("jax"))
    devices = jax.devices(name)
    wide = precision == "float64" or bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    with jax.default_device(devices[0]), jax.enable_x64(wide):
        yield Host(name, tuple(devices))


def resident_bytes() -> int:
    """What this process is resident with now, or where the system does not say, its most."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return Host("cpu", ()).peak_bytes() or 0


def mesh_of(walkers: int, devices: Sequence[Any] | None = None) -> Mesh | None:
    """A mesh over these devices (all there are), or None where there is one. The walkers must divide among them."""
    found = list(jax.devices() if devices is None else devices)
    if walkers % len(found):
        raise BadInput(
            f"{walkers} walkers do not divide among {len(found)} devices",
            hint=f"take {-(-walkers // len(found)) * len(found)} walkers",
        )
    return Mesh(np.array(found), (AXIS,)) if len(found) > 1 else None


def placed(tree: Any, mesh: Mesh | None) -> Any:
    """The tree with walkers' arrays spread and all else on each device. Arrays of numpy are taken too."""
    return jax.device_put(tree) if mesh is None else jax.device_put(tree, _shardings(tree, mesh))


def shapes(tree: Any, mesh: Mesh | None) -> Any:
    """Shapes and kinds of the tree as `placed` would place it: enough to compile for."""
    if mesh is None:
        return jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    return jax.tree_util.tree_map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        _shardings(tree, mesh),
    )


def placed_jit(program: Program, *, mesh: Mesh | None, donate: int = 0) -> Program:
    """The program compiled, with what it gives placed as `placed` does, so that it is compiled once for all its turns.

    For the device that is the default when this is called, or the mesh's.
    """

    def kept(*args: Any) -> Any:
        out = program(*args)
        return out if mesh is None else jax.lax.with_sharding_constraint(out, _shardings(out, mesh))

    return jax.jit(kept, donate_argnums=donate, compiler_options=_options(mesh))  # pyright: ignore[reportReturnType]


def _options(mesh: Mesh | None) -> dict[str, Any] | None:
    """On CUDA, products by the vendor's library alone.

    To try XLA's own kernels (Triton's) for each of many small products is most of the time a program takes to compile, and ours
    are small or shaped as the library likes them. To leave out the trials alone (autotune level 0) is no way: XLA's own kernels
    are then taken untried, and those of H2O with the medium network do not compile.
    """
    return {"xla_gpu_enable_triton_gemm": False} if _device(mesh).platform in ("gpu", "cuda") else None


def _device(mesh: Mesh | None) -> Any:
    if mesh is not None:
        return mesh.devices.flat[0]
    chosen: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return jax.devices(chosen)[0] if chosen is None or isinstance(chosen, str) else chosen


def _shardings(tree: Any, mesh: Mesh) -> Any:
    everywhere, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def of(leaf: Any) -> Any:
        return Walkers(spread, spread, everywhere) if isinstance(leaf, Walkers) else everywhere

    return jax.tree_util.tree_map(of, tree, is_leaf=lambda leaf: isinstance(leaf, Walkers))
