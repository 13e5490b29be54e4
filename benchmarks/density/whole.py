"""Time from a structure to a CHGCAR, and time of a fine grid within 6 GiB, for HfO2 with random weights.

python benchmarks/density/whole.py --device cuda -o benchmarks/results/density_whole_h200.json

The model has the widths of the ChargE3Net-style density report. pinchpoint must be importable: installed, or
`PYTHONPATH=src`. The first run includes the work done once per process (compiling kernels, loading the
device's libraries) and is reported separately; the other runs give the median with its interval.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command
from pinchpoint.core.units import GIB, show_bytes, show_seconds
from pinchpoint.studies.timing import timing_of
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.predict import predict

BUDGET = "card:6GiB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--mul", type=int, default=500)
    parser.add_argument("--grid", type=int, default=80)
    parser.add_argument("--fine", type=int, default=240)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)
    model = (
        DensityModel(DensityConfig.preset("original", ("Hf", "O"), mul=args.mul), seed=0)
        .to(args.device)
        .eval()
    )
    record = {
        "command": script_command(),
        "created": now(),
        "machine": describe(),
        "mul": args.mul,
        "file": _file(model, args.device, args.grid, args.repeats),
        "fine": _fine(model, args.device, args.fine),
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    file, fine = record["file"], record["fine"]
    print(
        f"{args.grid}^3 to a file: {show_seconds(file['seconds'])}, the first run "
        f"{show_seconds(file['first_s'])}"
    )
    print(
        f"{args.fine}^3 in {BUDGET}: {show_seconds(fine['seconds'])}, "
        f"peak {show_bytes(fine['peak_bytes'] or 0)}"
    )


def _file(model: DensityModel, device: str, grid: int, repeats: int) -> dict[str, Any]:
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            prediction = predict(
                hafnia(),
                output=Path(folder) / "CHGCAR",
                weights=model,
                grid=(grid, grid, grid),
                device=device,
            )
            seconds = time.perf_counter() - start
            runs.append(
                {
                    "seconds": seconds,
                    "atoms_s": prediction.atoms_s,
                    "probes_s": prediction.probes_s,
                    "file_s": prediction.file_s,
                }
            )
    timing = timing_of([run["seconds"] for run in runs[1:]])
    return {
        "grid": grid,
        "seconds": timing.median_s,
        "low_s": timing.low_s,
        "high_s": timing.high_s,
        "first_s": runs[0]["seconds"],
        "runs": runs,
    }


def _fine(model: DensityModel, device: str, grid: int) -> dict[str, Any]:
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        # A hard limit: anything that does not fit raises an out-of-memory error.
        torch.cuda.set_per_process_memory_fraction(6 * GIB / torch.cuda.get_device_properties(0).total_memory)
    start = time.perf_counter()
    prediction = predict(hafnia(), weights=model, grid=(grid, grid, grid), device=device, budget=BUDGET)
    seconds = time.perf_counter() - start
    return {
        "grid": grid,
        "budget_bytes": 6 * GIB,
        "probes": prediction.probes,
        "seconds": seconds,
        "peak_bytes": prediction.peak_bytes,
    }


if __name__ == "__main__":
    main()
