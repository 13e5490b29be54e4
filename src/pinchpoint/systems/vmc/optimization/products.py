"""Matrix products of SPRING in full float32 precision, on tensor cores if the GPU has them.

B walkers, P parameters. The reduced precision of TF32 would make the smallest eigenvalues of SPRING's matrix
negative. Three TF32 products of the leading and the remaining digits give float32 precision in less time than
the float32 units.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

COLUMNS_BYTES = (
    1 << 26
)  # of the rows multiplied at one time on tensor cores, whose leading and remaining digits are copies
_TENSOR_CORES = 8.0  # lowest compute capability with TF32


def dot(a: Any, b: Any) -> Any:
    return jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST)


def gram(rows: Any, *, mesh: Mesh | None = None) -> Any:
    """Return the products (B, B) of every two rows of (B, P).

    With a mesh, columns are spread over the devices, and their products are summed.
    """
    if mesh is None:
        return _local(rows)
    axis = mesh.axis_names
    summed = jax.shard_map(
        lambda part: jax.lax.psum(_local(part), axis),
        mesh=mesh,
        in_specs=PartitionSpec(None, axis),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return summed(rows)


def _local(rows: Any) -> Any:
    if rows.dtype != jnp.float32 or not has_tensor_cores(jax.devices()):
        return _of_all(rows, jax.lax.Precision.HIGHEST)
    # A run may use the CPU on a machine that has a GPU.
    return jax.lax.platform_dependent(
        rows, cuda=by_columns, default=lambda rows: _of_all(rows, jax.lax.Precision.HIGHEST)
    )


def has_tensor_cores(devices: Any) -> bool:
    """Return whether all of these devices are CUDA GPUs with TF32."""
    return all(device.platform == "gpu" and _capability(device) >= _TENSOR_CORES for device in devices)


def _capability(device: Any) -> float:
    """Return the compute capability; 0 for GPUs with another scheme, such as gfx90a of ROCm."""
    text = str(device.compute_capability)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else 0.0


def by_columns(rows: Any, precision: Any = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3) -> Any:
    """Return the same as `gram`, computed a block of columns at a time."""
    size, columns = rows.shape
    width = max(1, COLUMNS_BYTES // (size * rows.dtype.itemsize))
    turns = columns // width
    if turns < 2:
        return _of_all(rows, precision)

    def turn(at: Any, done: Any) -> Any:
        return done + _of_all(jax.lax.dynamic_slice_in_dim(rows, at * width, width, axis=1), precision)

    total = jax.lax.fori_loop(0, turns, turn, jnp.zeros((size, size), rows.dtype))
    return total + _of_all(rows[:, turns * width :], precision) if columns % width else total


def _of_all(rows: Any, precision: Any) -> Any:
    return jax.lax.dot_general(rows, rows, (((1,), (1,)), ((), ())), precision=precision)
