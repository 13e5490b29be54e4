"""The benchmark of JAX over eight devices: one device, predicted without a GPU and measured on one.

    python benchmarks/jax_sharded/run.py predict -o predicted.json
    python benchmarks/jax_sharded/run.py measure -o measured.json
    python benchmarks/jax_sharded/run.py table --predicted FILE [--plugin FILE] --measured FILE

A program over several devices cannot run on one GPU. `measure` runs the work of one device alone, with its
shapes; collectives are replaced by local operations with results of the same shape (`one_device.py`).
`fsdp.py` leaves the choice of collectives to XLA, so that there is no such program: it is not measured.
`predict` uses XLA's own analysis for eight GPUs if JAX's CUDA plugin is installed, and a liveness walk
otherwise; `table` compares both, if both files are given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
RESULTS = HERE.parent / "results"
sys.path.insert(0, str(SOURCE))

WORLD = 8
RUN_S = 100
GIB = 2**30
KEYS = ("peak_allocated_bytes", "low_bytes", "high_bytes", "method", "nccl_bytes", "reasons", "breakdown")
# The arguments that give a program the shapes of one device of eight; None if it cannot be measured alone.
PROGRAMS: dict[str, tuple[str, ...] | None] = {
    "data_parallel": ("--batch", "4"),
    "fsdp": None,
    "tensor_parallel": ("--batch", "16384", "--hidden", "2048"),  # two groups of four devices
    "pmap": (),
    "gather_by_hand": ("--batch", "8"),
    "ring": ("--sequence", "2048"),
}


def predict(name: str) -> dict[str, Any]:
    from pinchpoint import predict as predict_script

    start = time.perf_counter()
    try:
        forecast = predict_script(str(HERE / "programs" / f"{name}.py"), world_size=WORLD, timeout_s=900)
    except Exception as error:  # the other programs are still worth a row
        return {"reason": f"{type(error).__name__}: {error}"}
    values = forecast.to_dict()
    return {key: values[key] for key in KEYS} | {"seconds": time.perf_counter() - start}


def measure(name: str, *, share: float, folder: Path) -> dict[str, Any]:
    """Run one program in its own process; a failure is recorded with the end of what it printed."""
    environment = dict(os.environ) | {"XLA_CLIENT_MEM_FRACTION": f"{share}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("JAX_PLATFORMS", None)
    output = folder / f"{name}.json"
    path = str(HERE / "programs" / f"{name}.py")
    try:
        result = subprocess.run(
            [sys.executable, str(HERE / "one_device.py"), path, str(output), *(PROGRAMS[name] or ())],
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"it did not end within {RUN_S} s"}
    if not output.exists():
        return {"reason": (result.stderr or result.stdout)[-1500:]}
    return json.loads(output.read_text(encoding="utf-8"))


def measure_all(output: Path, only: str | None, jobs: int) -> None:
    names = [name for name, args in PROGRAMS.items() if args is not None]
    names = only.split(",") if only else names
    data: dict[str, Any] = (
        json.loads(output.read_text(encoding="utf-8")) if output.exists() else {"cases": {}}
    )
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        share = round(0.85 / jobs, 3)
        waiting = {pool.submit(measure, name, share=share, folder=Path(folder)): name for name in names}
        for future in as_completed(waiting):
            case = data["cases"][waiting[future]] = future.result()
            print(f"{waiting[future]:18} {_show(case)}", flush=True)
            output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def predict_all(output: Path, only: str | None) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    data: dict[str, Any] = (
        json.loads(output.read_text(encoding="utf-8")) if output.exists() else {"cases": {}}
    )
    for name in only.split(",") if only else PROGRAMS:
        data["cases"][name] = predict(name)
        print(f"{name:18} {_show(data['cases'][name])}", flush=True)
        output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _show(case: dict[str, Any]) -> str:
    if "reason" in case:
        return case["reason"].strip().splitlines()[-1]
    return f"{case['peak_allocated_bytes'] / GIB:.3f} GiB ({case['seconds']:.0f} s)"


def table(predicted: Path, plugin: Path | None, measured: Path, output: Path) -> int:
    """Write the record and its page. Returns 1 if a measured peak is outside an interval."""
    forecasts = {"liveness": json.loads(predicted.read_text(encoding="utf-8"))["cases"]}
    if plugin is not None:
        forecasts["xla"] = json.loads(plugin.read_text(encoding="utf-8"))["cases"]
    data = json.loads(measured.read_text(encoding="utf-8"))
    record = {"world_size": WORLD, "measured": data, "predicted": forecasts}
    output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# One of eight devices in JAX",
        "",
        "Peaks of one device, in GiB; measured is the work of one device, run alone on an H200, with local "
        "operations for collectives. Written by `benchmarks/jax_sharded/run.py table`.",
        "",
        "| program | measured | method | predicted | error | interval | inside |",
        "|---|---|---|---|---|---|---|",
    ]
    outside = 0
    for name in PROGRAMS:
        real = data["cases"].get(name, {}).get("peak_allocated_bytes")
        for method, cases in forecasts.items():
            case = cases.get(name, {})
            if "peak_allocated_bytes" not in case:
                continue
            peak, low, high = (case[key] for key in ("peak_allocated_bytes", "low_bytes", "high_bytes"))
            is_inside = real is None or low <= real <= high
            outside += not is_inside
            measured_cells = f"{real / GIB:.2f}" if real else "-", f"{peak / real - 1:+.1%}" if real else "-"
            lines.append(
                f"| {name} | {measured_cells[0]} | {method} | {peak / GIB:.2f} | {measured_cells[1]} | "
                f"{low / GIB:.2f} to {high / GIB:.2f} | {('yes' if is_inside else 'no') if real else '-'} |"
            )
    text = "\n".join(lines) + "\n"
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if outside else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("predict", "measure", "table"))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", help="Programs, separated by commas; default: all.")
    parser.add_argument(
        "--jobs", type=int, default=3, help="Programs that are measured at a time; default: 3."
    )
    parser.add_argument("--predicted", type=Path)
    parser.add_argument("--plugin", type=Path, help="Forecasts that were made with JAX's CUDA plugin.")
    parser.add_argument("--measured", type=Path)
    args = parser.parse_args()
    if args.verb == "predict":
        predict_all(args.output, args.only)
    elif args.verb == "measure":
        measure_all(args.output, args.only, args.jobs)
    else:
        return table(
            args.predicted, args.plugin, args.measured, args.output or RESULTS / "jax_sharded_h200.json"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
