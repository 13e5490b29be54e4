"""Comparison of predicted and measured peaks of JAX steps on this machine's GPU.

    python benchmarks/accuracy/jax_methods.py record.json [--jobs 4] [--only mlp,scan]

For each step, in separate processes:
  topology    XLA's analysis for this card, compiled without the GPU (what `predict` does)
  attached    the same with the target config of the installed GPU instead of pinchpoint's own
  compiled    XLA's analysis of the step compiled on the GPU, with and without autotuning
  measured    JAX's allocator after one step: peak_bytes_in_use, with and without autotuning
  walk, plain the jaxpr liveness walk, with and without fusion
Prints a table of bytes and of errors relative to `measured` without autotuning (the other column
includes autotuning's own scratch memory) and writes a JSON record. Without a GPU the columns that need
one stay empty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"
CARD = "h200"
ORBITAL = {
    f"orbital-{variant}-{size}": (variant, size)
    for variant in ("hessian", "loop", "chunked")
    for size in (20_000, 200_000)
}
CASES = ("mlp", "mlp-donated", "remat", "scan", "conv", "attention", *ORBITAL)
COLUMNS = (
    "topology",
    "attached",
    "compiled",
    "compiled_untuned",
    "measured",
    "measured_untuned",
    "walk",
    "plain",
)
UNTUNED = "--xla_gpu_autotune_level=0"


def build(name: str, device: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a jitted step and its arguments: arrays on the GPU, or shapes if there is none."""
    if name in ORBITAL:
        from pinchpoint.workloads.orbital import WORKLOAD

        variant, size = ORBITAL[name]
        case = WORKLOAD.case(size, device=device, mode="train", variant=variant)
        return case.step, case.args
    import jax
    import numpy as np

    step, shapes = _STEPS[name]()

    def make(struct: Any) -> Any:
        return jax.device_put(np.full(struct.shape, 0.01, struct.dtype), jax.devices(device)[0])

    return step, shapes if device == "cpu-shapes" else jax.tree_util.tree_map(make, shapes)


def mlp(donate: bool = False) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return one Adam step on six layers of width 512 and 65,536 points (with optax if it is installed)."""
    import jax
    import jax.numpy as jnp

    params = [jax.ShapeDtypeStruct((512, 512), jnp.float32) for _ in range(6)]
    x = jax.ShapeDtypeStruct((65_536, 512), jnp.float32)

    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    try:
        import optax
    except ImportError:
        from pinchpoint.workloads.orbital.model import adam

        def start(params: Any) -> Any:
            zero = jax.tree_util.tree_map(jnp.zeros_like, params)
            return {"count": jnp.zeros(()), "mean": zero, "square": zero}

        def update(params: Any, opt_state: Any, grads: Any) -> Any:
            return adam(params, opt_state, grads)
    else:
        rule = optax.adam(1e-3)
        start = rule.init

        def update(params: Any, opt_state: Any, grads: Any) -> Any:
            updates, opt_state = rule.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

    def train(params: Any, opt_state: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return *update(params, opt_state, grads), value

    return jax.jit(train, donate_argnums=(0, 1) if donate else ()), (params, jax.eval_shape(start, params), x)


def remat() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the gradient of eight checkpointed blocks of two layers."""
    import jax
    import jax.numpy as jnp

    params = [
        (jax.ShapeDtypeStruct((512, 1024), jnp.float32), jax.ShapeDtypeStruct((1024, 512), jnp.float32))
        for _ in range(8)
    ]
    x = jax.ShapeDtypeStruct((32_768, 512), jnp.float32)

    def loss(params: Any, x: Any) -> Any:
        for block in params:
            x = jax.checkpoint(lambda b, x: x + jnp.tanh(x @ b[0]) @ b[1])(block, x)
        return jnp.mean(x**2)

    return jax.jit(jax.grad(loss)), (params, x)


def scan() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the gradient of a recurrent network over 64 steps."""
    import jax
    import jax.numpy as jnp

    shapes = jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct((64, 8192, 512), jnp.float32)

    def loss(params: Any, x: Any) -> Any:
        def turn(h: Any, row: Any) -> Any:
            h = jnp.tanh(h @ params + row)
            return h, jnp.mean(h)

        return jnp.mean(jax.lax.scan(turn, jnp.zeros(x.shape[1:]), x)[1])

    return jax.jit(jax.grad(loss)), shapes


def conv() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the gradient of four 3 x 3 convolutions with 64 channels."""
    import jax
    import jax.numpy as jnp

    params = [jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.float32) for _ in range(4)]
    x = jax.ShapeDtypeStruct((64, 64, 64, 64), jnp.float32)

    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            )
        return jnp.mean(x**2)

    return jax.jit(jax.grad(loss)), (params, x)


def attention() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the gradient of one attention layer without a fused kernel: 8 x 16 heads, 1,024 tokens."""
    import jax
    import jax.numpy as jnp

    shape = jax.ShapeDtypeStruct((8, 16, 1024, 64), jnp.float32)

    def loss(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8)
        return jnp.mean(jnp.einsum("bhqk,bhkd->bhqd", weights, v) ** 2)

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))), (shape, shape, shape)


_STEPS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "mlp": mlp,
    "mlp-donated": lambda: mlp(donate=True),
    "remat": remat,
    "scan": scan,
    "conv": conv,
    "attention": attention,
}


def topology(name: str, config: str) -> dict[str, Any]:
    """Run both topology analyses and the walk, in a process that must not use the GPU."""
    from pinchpoint.backends.jax import compat, xla
    from pinchpoint.backends.jax.captured_arrays import hoist
    from pinchpoint.backends.jax.compile_targets import matmul_workspace
    from pinchpoint.backends.jax.liveness import walk
    from pinchpoint.backends.jax.program import read_program
    from pinchpoint.backends.jax.tracing import trace
    from pinchpoint.forecasting.cards import card

    aim = card(CARD)
    start = time.perf_counter()
    traced = trace(*build(name, "cuda" if name in ORBITAL else "cpu-shapes"))
    program = read_program(traced)
    workspace = matmul_workspace(aim.capability)
    row: dict[str, Any] = {
        "walk": walk(program, workspace_bytes=workspace).peak_bytes,
        "plain": walk(program, fused=False, workspace_bytes=workspace).peak_bytes,
        "walk_s": time.perf_counter() - start,
    }
    ways = {"topology": compat.topology_devices}
    if config:
        ways["attached"] = lambda _: compat.topology_devices(config)
    for column, devices in ways.items():
        start = time.perf_counter()
        try:
            analysis = xla.analyse(
                hoist(traced), capability=aim.capability, memory_bytes=aim.memory_bytes, devices=devices
            ).expected
        except xla.NoAnalysis as reason:
            row[f"{column}_reason"] = str(reason)
            continue
        row |= {
            column: analysis.peak_bytes,
            f"{column}_s": time.perf_counter() - start,
            f"{column}_options": analysis.options,
        }
        row[f"{column}_parts"] = {
            "arguments": analysis.arguments,
            "outputs": analysis.outputs,
            "temporaries": analysis.temporaries,
            "aliases": analysis.aliases,
            "live_peak": analysis.live_peak,
        }
    return row


def on_gpu(name: str, suffix: str) -> dict[str, Any]:
    """Compile the step for the GPU and run it once, in a fresh process that holds only its arguments."""
    import jax

    from pinchpoint.backends.jax import measurement, xla

    step, args = build(name, "cuda")
    measurement.wait("cuda", args)
    before = measurement.peaks("cuda").allocated_bytes
    compiled = step.lower(*args).compile()
    after_compiling = measurement.peaks("cuda").allocated_bytes
    measurement.wait("cuda", compiled(*args))
    stats = compiled.memory_analysis()
    return {
        f"compiled{suffix}": xla.compiled_bytes(compiled),
        f"compiled{suffix}_live_peak": getattr(stats, "peak_memory_in_bytes", None),
        f"compiled{suffix}_temporaries": stats.temp_size_in_bytes,
        f"measured{suffix}": measurement.peaks("cuda").allocated_bytes,
        f"measured{suffix}_before_compiling": before,
        f"measured{suffix}_after_compiling": after_compiling,
        f"measured{suffix}_stats": {k: int(v) for k, v in jax.local_devices()[0].memory_stats().items()},
    }


def attached() -> dict[str, Any]:
    import jax

    from pinchpoint.backends.jax import compat, measurement

    machine: dict[str, Any] = {
        "jax": jax.__version__,
        "plugin": compat.cuda_plugin(),
        "gpu": None,
        "target_config": "",
    }
    if measurement.has_cuda():
        machine |= {
            "gpu": jax.devices("cuda")[0].device_kind,
            "target_config": compat.attached_target_config(),
        }
    return machine


def worker(job: str, name: str, config: str) -> None:
    sys.path.insert(0, str(SOURCE))
    text = Path(config).read_text(encoding="utf-8") if config else ""
    jobs = {
        "attached": attached,
        "topology": lambda: topology(name, text),
        "gpu": lambda: on_gpu(name, ""),
        "untuned": lambda: on_gpu(name, "_untuned"),
    }
    print(json.dumps(jobs[job]()))


def run(job: str, name: str = "", config: str = "", timeout_s: float = 300.0) -> dict[str, Any]:
    """Run one job in its own process; a failure is recorded as a reason, so the other rows still appear."""
    env = dict(os.environ) | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    env.pop("JAX_PLATFORMS", None)
    if job == "topology":
        env["JAX_PLATFORMS"] = "cpu"
    if job == "untuned":
        env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {UNTUNED}".strip()
    command = [sys.executable, __file__, "--worker", job, name, config]
    try:
        process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {f"{job}_failed": f"over {timeout_s:.0f} s"}
    if process.returncode != 0:
        return {f"{job}_failed": process.stderr.strip()[-1500:] or f"exit {process.returncode}"}
    return json.loads(process.stdout.strip().splitlines()[-1])


def table(rows: list[dict[str, Any]]) -> str:
    width = max(len(row["case"]) for row in rows)
    lines = [" ".join([f"{'MiB':{width}}", *(f"{column:>16}" for column in COLUMNS)])]
    for row in rows:
        cells = (f"{row[c] / 2**20:16,.1f}" if row.get(c) is not None else f"{'-':>16}" for c in COLUMNS)
        lines.append(" ".join([f"{row['case']:{width}}", *cells]))
    lines.append("error relative to measured, without autotuning")
    for row in rows:
        truth = row.get("measured_untuned")
        cells = (
            f"{row[c] / truth - 1:+16.1%}" if truth and row.get(c) is not None else f"{'-':>16}"
            for c in COLUMNS
        )
        lines.append(" ".join([f"{row['case']:{width}}", *cells]))
    lines += [
        f"{row['case']}: {key}: {text}"
        for row in rows
        for key, text in row.items()
        if key.endswith(("_reason", "_failed"))
    ]
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="File to write the JSON record to.")
    parser.add_argument("--jobs", type=int, default=4, help="Number of processes at a time.")
    parser.add_argument("--only", default="", help="Comma-separated cases to run; all by default.")
    args = parser.parse_args()
    names = [name for name in CASES if not args.only or name in args.only.split(",")]
    machine = run("attached")
    config = ""
    if machine.get("target_config"):
        config = str(args.record.with_suffix(".target_config.txtpb"))
        Path(config).write_text(machine["target_config"], encoding="utf-8")
    kinds = ("topology", "gpu", "untuned") if machine.get("gpu") else ("topology",)
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {(n, k): pool.submit(run, k, n, config) for n in names for k in kinds}
        rows = [
            {"case": n} | {key: value for k in kinds for key, value in futures[n, k].result().items()}
            for n in names
        ]
    args.record.write_text(
        json.dumps({"check": "jax topology", "card": CARD, "machine": machine, "rows": rows}, indent=1) + "\n"
    )
    print(json.dumps({key: value for key, value in machine.items() if key != "target_config"}))
    print(table(rows))


if __name__ == "__main__":
    main()
