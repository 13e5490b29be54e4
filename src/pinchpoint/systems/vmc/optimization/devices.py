"""The devices of a run: where arrays are placed, programs that keep them there, and the memory they take.

Walkers are spread over the devices; parameters are copied to each. The mesh has one axis. Sums over walkers
become sums over devices automatically, and random numbers are the same on any number of devices. Without a
mesh, everything is on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.backends.jax import measurement
from pinchpoint.core.errors import BadInput, DoesNotFit, Missing
from pinchpoint.core.host_memory import peak_resident_bytes
from pinchpoint.systems.vmc.optimization.sampling import Walkers

AXIS = "walkers"
_NO_LIBRARY = "Failed to initialize BLAS"  # XLA, if cuBLAS is not installed or finds no memory
Program = TypeVar("Program", bound=Callable[..., Any])


@dataclass(frozen=True)
class Host:
    """The devices of one kind. name: cpu or cuda."""

    name: str
    devices: tuple[Any, ...]

    def mesh(self, walkers: int) -> Mesh | None:
        """Return a mesh over all devices; None for a single device."""
        return mesh_of(walkers, self.devices)

    def sharing(self, walkers: int) -> Host:
        """Return the largest number of these devices that can share the walkers equally."""
        count = max(count for count in range(1, len(self.devices) + 1) if walkers % count == 0)
        return Host(self.name, self.devices[:count])

    def peak_bytes(self) -> int | None:
        """Return the peak allocated on CUDA since the process started; on a CPU, its peak resident memory."""
        if self.name == "cuda":
            return measurement.peaks("cuda").allocated_bytes
        return peak_resident_bytes()


@contextmanager
def on(device: str, *, precision: str) -> Iterator[Host]:
    """Return a context that creates arrays on that device and enables float64 if needed.

    Afterwards, both settings are restored. A device without memory left is no bug, nor is a library that does
    not start: on a shared GPU, other programs may use its memory.
    """
    name = resolve_device(device, backend("jax"))
    devices = jax.devices(name)
    wide = precision == "float64" or bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    with jax.default_device(devices[0]), jax.enable_x64(wide):
        try:
            yield Host(name, tuple(devices))
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0][:200]
            if measurement.is_oom(error):
                raise DoesNotFit(
                    f"The memory of the device {name} is used up: {reason}",
                    hint="End other programs on the device, or use fewer --walkers or a smaller --set chunk.",
                ) from error
            if _NO_LIBRARY in str(error):
                raise Missing(
                    f"The library cuBLAS did not start: {reason}",
                    hint="Free memory of the GPU, which cuBLAS needs, or install JAX with CUDA libraries.",
                ) from error
            raise


def mesh_of(walkers: int, devices: Sequence[Any] | None = None) -> Mesh | None:
    """Return a mesh over these devices (default: all), or None for one. They must divide the walkers."""
    devices = list(jax.devices() if devices is None else devices)
    if walkers % len(devices):
        raise BadInput(
            f"{walkers} walkers cannot be divided evenly among {len(devices)} devices.",
            hint=f"Use {-(-walkers // len(devices)) * len(devices)} walkers.",
        )
    return Mesh(np.array(devices), (AXIS,)) if len(devices) > 1 else None


def place(tree: Any, mesh: Mesh | None) -> Any:
    """Return the tree with the arrays of walkers spread over the devices and all others copied to each.

    Numpy arrays are accepted too.
    """
    return jax.device_put(tree) if mesh is None else jax.device_put(tree, _shardings(tree, mesh))


def shapes(tree: Any, mesh: Mesh | None) -> Any:
    """Return the shapes and dtypes of the tree as `place` would place it, which is enough to compile."""
    if mesh is None:
        return jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    return jax.tree_util.tree_map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        _shardings(tree, mesh),
    )


def placing_jit(program: Program, *, mesh: Mesh | None, donate: int | tuple[int, ...] = 0) -> Program:
    """Return the jitted program, with results placed as by `place`, so that it is compiled only once.

    It runs on the default device at the time of this call, or on the mesh.
    """

    def run(*args: Any) -> Any:
        out = program(*args)
        return out if mesh is None else jax.lax.with_sharding_constraint(out, _shardings(out, mesh))

    return jax.jit(run, donate_argnums=donate, compiler_options=_options(mesh))  # pyright: ignore[reportReturnType]


def _options(mesh: Mesh | None) -> dict[str, Any] | None:
    """Return compiler options; on CUDA, they restrict products to the vendor's library.

    Trying XLA's Triton kernels for each of many small products takes most of the compile time, and our
    products are small or have shapes that suit the library. Skipping only the trials (autotune level 0) does
    not work: XLA then uses its own kernels untested, and those for H2O with the medium network do not
    compile.
    """
    return {"xla_gpu_enable_triton_gemm": False} if device_of(mesh).platform in ("gpu", "cuda") else None


def device_of(mesh: Mesh | None) -> Any:
    """Return the first device of the mesh; without a mesh, the default device."""
    if mesh is not None:
        return mesh.devices.flat[0]
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return jax.devices(default)[0] if default is None or isinstance(default, str) else default


def _shardings(tree: Any, mesh: Mesh) -> Any:
    everywhere, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def of(leaf: Any) -> Any:
        return Walkers(spread, spread, everywhere) if isinstance(leaf, Walkers) else everywhere

    return jax.tree_util.tree_map(of, tree, is_leaf=lambda leaf: isinstance(leaf, Walkers))
