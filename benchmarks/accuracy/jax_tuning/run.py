"""Memory that XLA's choices of kernels take: tuning scratch, and XLA's assignment with and without the card.

    python benchmarks/accuracy/jax_tuning/run.py gpu >> lines.jsonl  # on a machine with a GPU
    python benchmarks/accuracy/jax_tuning/run.py analyses >> lines.jsonl  # with JAX's CUDA plugin, GPU hidden

`gpu` compiles single products and convolutions, in ascending order because JAX cannot reset its peak, and
then the programs of `steps.py`; nothing runs, and no array is alive, so the peak is the scratch for tuning.
`analyses` prints the liveness walks and XLA's analyses of the programs. One JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from steps import STEPS, convolve

PRODUCTS = (
    (256, 256, 256),
    (1024, 1024, 1024),
    (4096, 512, 512),
    (65536, 64, 64),
    (8192, 1024, 4096),
    (65536, 512, 512),
    (4096, 4096, 16384),
    (131072, 1024, 1024),
)
# Batch, side of the image, channels in, channels out, side of the kernel.
CONVOLUTIONS = (
    (8, 32, 3, 16, 3),
    (16, 32, 64, 64, 1),
    (16, 32, 64, 64, 3),
    (64, 32, 64, 64, 5),
    (64, 32, 128, 128, 3),
    (128, 32, 128, 256, 3),
    (256, 64, 3, 64, 3),
    (256, 32, 256, 256, 3),
)


def peak_bytes() -> int:
    return int(jax.local_devices()[0].memory_stats()["peak_bytes_in_use"])


def compiled(function: Any, shapes: Any) -> dict[str, Any]:
    """Compile on the card. scratch_bytes is None if an earlier compilation took more."""
    before, start = peak_bytes(), time.perf_counter()
    stats = function.lower(*shapes).compile().memory_analysis()
    after = peak_bytes()
    return {
        "argument_bytes": stats.argument_size_in_bytes,
        "output_bytes": stats.output_size_in_bytes,
        "added_bytes": stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "scratch_bytes": after if after > before else None,
        "took_s": round(time.perf_counter() - start, 2),
    }


def on_gpu(kinds: list[str]) -> Iterator[dict[str, Any]]:
    if "products" in kinds:
        for m, k, n in PRODUCTS:
            shapes = Shape((m, k), jnp.float32), Shape((k, n), jnp.float32)
            yield {"kind": "product", "shape": (m, k, n), **compiled(jax.jit(jnp.matmul), shapes)}
    if "convolutions" in kinds:
        for batch, side, channels, features, width in CONVOLUTIONS:
            x = Shape((batch, side, side, channels), jnp.float32)
            kernel = Shape((width, width, channels, features), jnp.float32)
            row = compiled(jax.jit(convolve), (x, kernel))
            yield {"kind": "convolution", "shape": (batch, side, channels, features, width), **row}
    if "programs" in kinds:
        for name, make in STEPS.items():
            yield {"kind": "program", "program": name, **compiled(*make())}


def without_gpu() -> Iterator[dict[str, Any]]:
    from pinchpoint.backends.jax import xla
    from pinchpoint.backends.jax.captured_arrays import hoist
    from pinchpoint.backends.jax.compile_targets import matmul_workspace
    from pinchpoint.backends.jax.liveness import walk
    from pinchpoint.backends.jax.program import read_program
    from pinchpoint.backends.jax.tracing import trace
    from pinchpoint.forecasting.cards import card

    aim = card("h200")
    workspace = matmul_workspace(aim.capability)
    for name, make in STEPS.items():
        traced = trace(*make())
        program = read_program(traced)
        inputs = program.input_bytes
        analyses = xla.analyse(hoist(traced), capability=aim.capability, memory_bytes=aim.memory_bytes)
        yield {
            "kind": "analyses",
            "program": name,
            "walk_bytes": walk(program, workspace_bytes=workspace).peak_bytes - inputs,
            "walk_without_workspace_bytes": walk(program).peak_bytes - inputs,
            "plain_walk_bytes": walk(program, fused=False, workspace_bytes=workspace).peak_bytes - inputs,
            "analyses_bytes": list(analyses.added_bytes),
            "tuning_bytes": analyses.tuning and analyses.tuning[0],
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=("gpu", "analyses"))
    parser.add_argument("--kinds", default="products,convolutions,programs", help="What gpu compiles.")
    args = parser.parse_args()
    for row in on_gpu(args.kinds.split(",")) if args.job == "gpu" else without_gpu():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))
    main()
