"""Forecasts of the systems' workloads beside the peaks of the same steps on a GPU.

    CUDA_VISIBLE_DEVICES= python benchmarks/workloads.py predict benchmarks/results/workloads_h200.json
    python benchmarks/workloads.py measure benchmarks/results/workloads_h200.json
    python benchmarks/workloads.py show benchmarks/results/workloads_h200.json

`predict` needs no GPU; with JAX's CUDA plugin, XLA plans the steps of JAX as it does on a GPU. `measure` runs
two steps of each case in a process of its own. JAX cannot reset its peak, and trying kernels takes more than
a small step: a second process, which finds the compiled programs in a cache, shows what the steps take. Both
write the record after every case, keep what it has, and take cases with `--only`. A forecast that is an
interval has its ends beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pinchpoint import predict
from pinchpoint.core import targets
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import Forecast, now, script_command
from pinchpoint.core.units import MIB
from pinchpoint.forecasting import gpu_measurement

STEPS = 2
TIMEOUT_S = 600.0


class Case(NamedTuple):
    workload: str
    size: int
    mode: str
    variant: str
    settings: dict[str, str] = {}

    @property
    def name(self) -> str:
        settings = " ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.workload} {self.size:,} {self.mode} {self.variant} {settings}".strip()


def cases() -> list[Case]:
    """Every workload of a system in every variant, at two sizes, in the precisions it has kernels for."""
    both = ("train", "infer")
    chosen = [
        Case("cloud", size, "infer", variant)
        for variant, size in product(("loop", "grouped", "sort", "exact", "nested"), (1_000_000, 8_000_000))
    ]
    chosen += [
        Case("density", size, mode, variant)
        for variant, mode, size in product(("full", "scalar"), both, (8_192, 20_000))
    ]
    fields = ("eager", "folded", "checkpoint", "deferred", "folded+checkpoint")
    for variant, size in product(fields, (2_048, 8_192)):
        chosen.append(Case("radiance", size, "train", variant))
    for precision, mode in product(("fp32", "bf16"), both):
        chosen.append(Case("radiance", 8_192, mode, "folded", {"precision": precision}))
    for variant, part, precision in product(("eager", "flat"), ("encoder", "full"), ("fp32", "bf16")):
        settings = {"part": part, "precision": precision}
        chosen += [Case("operator", size, "train", variant, settings) for size in (250_000, 1_000_000)]
    for variant in ("hessian", "loop", "forward", "chunked"):
        chosen += [Case("vmc", size, "train", variant) for size in (1_024, 16_384)]
    chosen.append(Case("vmc", 1_024, "train", "forward", {"system": "N2", "net": "ferminet"}))
    return list({case.name: case for case in chosen}.values())


def predict_case(case: Case, row: dict[str, Any]) -> dict[str, Any]:
    forecast = predict(
        case.workload,
        size=case.size,
        mode=case.mode,
        variant=case.variant,
        settings=case.settings,
        card="h200",
        steps=STEPS,
        timeout_s=TIMEOUT_S,
    )
    short = replace(forecast, timeline=(), lines=(), modules=(), fits={})
    return {"forecast": short.to_dict()}


def measure_case(case: Case, row: dict[str, Any]) -> dict[str, Any]:
    if "forecast" not in row:
        raise PinchpointError(f"{case.name} has no forecast.", hint="Run `predict` first.")
    forecast = Forecast.from_dict(row["forecast"])

    def peaks(environment: dict[str, str]) -> dict[str, int]:
        return gpu_measurement.measure(
            targets.find(case.workload),
            forecast,
            chunk=None,
            steps=STEPS,
            seed=0,
            timeout_s=TIMEOUT_S,
            environment=environment,
        )

    if forecast.framework == "torch":
        return {"measured": peaks({})}
    with tempfile.TemporaryDirectory(prefix="pinchpoint-") as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        return {"measured_while_compiling": peaks(cache), "measured": peaks(cache)}


def add(
    path: Path,
    label: str,
    chosen: list[Case],
    add_to: Callable[[Case, dict[str, Any]], dict[str, Any]],
    at_once: int,
) -> None:
    """Add to the rows of a record what `add_to` says about their cases; an error is kept in its place."""
    record = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    record.setdefault(label, []).append(
        {"command": script_command(), "created": now(), "machine": describe()}
    )
    rows: dict[str, dict[str, Any]] = record["rows"]

    def answer_of(case: Case) -> dict[str, Any]:
        try:
            return add_to(case, rows.get(case.name, {}))
        except PinchpointError as error:
            return {f"{label}_error": str(error)}

    with ThreadPoolExecutor(at_once) as pool:
        for case, values in zip(chosen, pool.map(answer_of, chosen), strict=True):
            row = rows.setdefault(case.name, {})
            row.pop(f"{label}_error", None)
            row |= values
            print(line_of(case.name, row), flush=True)
            write_text(path, json.dumps(record, indent=1))


def line_of(name: str, row: dict[str, Any]) -> str:
    """A row of a table in Markdown: what was predicted and measured, and how far they are apart."""
    errors = [text for key, text in row.items() if key.endswith("_error")]
    if errors or "forecast" not in row:
        return f"| {name} | {' '.join(errors)} | | | |"
    forecast = row["forecast"]
    peak, low, high = (forecast[key] for key in ("peak_allocated_bytes", "low_bytes", "high_bytes"))
    forecast_text = f"{peak / MIB:,.1f}"
    if low is not None and high is not None:
        forecast_text += f" [{low / MIB:,.1f}, {high / MIB:,.1f}]"
    if "measured" not in row:
        return f"| {name} | {forecast_text} | | | |"
    peaks = row["measured"]
    reserved = ""
    if forecast["peak_reserved_bytes"] and peaks["reserved_bytes"]:
        reserved = f"{forecast['peak_reserved_bytes'] / peaks['reserved_bytes'] - 1:+.1%}"
    allocated = peaks["allocated_bytes"]
    return f"| {name} | {forecast_text} | {allocated / MIB:,.1f} | {peak / allocated - 1:+.2%} | {reserved} |"


def show(path: Path) -> str:
    rows = json.loads(path.read_text())["rows"]
    head = "| workload, size, mode, variant | forecast, MiB | measured, MiB | apart | reserved |"
    return "\n".join([head, "|---|--:|--:|--:|--:|", *(line_of(name, row) for name, row in rows.items())])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "measure", "show"))
    parser.add_argument("record", type=Path)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="Take cases with one of these words.")
    parser.add_argument("--at-once", type=int, default=2, help="Cases at the same time. Default: 2.")
    args = parser.parse_args()
    chosen = [case for case in cases() if not args.only or set(args.only) & set(case.name.split())]
    if args.what != "predict" and not args.record.exists():
        parser.error(f"There is no {args.record}: write it with `predict`.")
    if not chosen:
        parser.error("No case has one of these words.")
    if args.what == "show":
        print(show(args.record))
    elif args.what == "predict":
        add(args.record, "predict", chosen, predict_case, args.at_once)
    else:
        import_module("torch")  # so that the record names the GPU
        add(args.record, "measure", chosen, measure_case, args.at_once)


if __name__ == "__main__":
    sys.exit(main())
