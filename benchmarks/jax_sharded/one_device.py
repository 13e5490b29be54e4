"""Runs a program of this benchmark as one device of eight, alone, and writes its peak to a file.

    python one_device.py PROGRAM.py OUTPUT.json [arguments]

The arguments give it the shapes of one device. Collectives are replaced by local operations with results of
the same shape, which are in memory as those of the collectives are. NCCL has no buffers.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

WORLD = 8


def all_gather(x: Any, *_: Any, **__: Any) -> Any:
    return jax.lax.optimization_barrier(jnp.tile(x, (WORLD, *(1 for _ in x.shape[1:]))))


def same_shape(tree: Any, *_: Any, **__: Any) -> Any:
    """Stands for psum, pmean and ppermute."""
    return jax.tree.map(lambda x: jax.lax.optimization_barrier(x * 1.0001), tree)


def main(path: str, output: str, *args: str) -> None:
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).parent))
    models: Any = importlib.import_module("models")  # beside the program
    shapes = models.layer_shapes()
    if Path(path).stem == "gather_by_hand":  # each device has an eighth of the first axis
        models.layer_shapes = lambda: {name: (s[0] // WORLD, *s[1:]) for name, s in shapes.items()}
    if Path(path).stem in ("gather_by_hand", "ring"):
        jax.shard_map = lambda function, **_: function
        jax.device_count = lambda *_: WORLD
        jax.lax.all_gather, jax.lax.pmean, jax.lax.ppermute = all_gather, same_shape, same_shape
    start = time.perf_counter()
    runpy.run_path(path, run_name="__main__")
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    answer = {
        "peak_allocated_bytes": stats.get("peak_bytes_in_use"),
        "seconds": time.perf_counter() - start,
        "gpu": device.device_kind,
        "jax": jax.__version__,
    }
    Path(output).write_text(json.dumps(answer) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
