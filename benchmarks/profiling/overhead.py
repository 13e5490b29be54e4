"""What a profile costs: the same ResNet-18 loop plain, under pinchpoint, and under other profilers.

    PYTHONPATH=src python benchmarks/profiling/overhead.py -o overhead.json          # CUDA if there is one
    PYTHONPATH=src python benchmarks/profiling/overhead.py --batch 16 --steps 25 --rounds 3

Every run is a process of its own. Rounds go through all ways in turn, so that a machine that becomes slower
does so for all. The time is of the loop alone, taken by the program itself after five steps; `whole` includes
these. Overheads are medians over rounds of the time divided by that of the plain run of the same round, also
for CPU seconds, which do not depend on what else the machine does. Scalene and TraceML run if installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pinchpoint.core import machine
from pinchpoint.core.records import now

HERE = Path(__file__).parent
PROGRAM = str(HERE / "resnet18.py")
BARS = {"pinchpoint --light": 0.02, "pinchpoint": 0.15}

# torch.profiler as its documentation uses it, on the whole run.
_UNDER_TORCH = """
import runpy, sys
import torch
from torch.profiler import ProfilerActivity, profile
activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
sys.argv = sys.argv[1:]
with profile(activities=activities, record_shapes=True, profile_memory=True):
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ways(folder: Path, options: list[str]) -> dict[str, list[str]]:
    """The command of each way to run the program, by name."""
    python = sys.executable
    found = {
        "plain": [python, PROGRAM, *options],
        "pinchpoint --light": [python, "-m", "pinchpoint", "profile", PROGRAM, "--light", "--", *options],
        "pinchpoint": [python, "-m", "pinchpoint", "profile", PROGRAM, "--", *options],
        "torch.profiler": [python, "-c", _UNDER_TORCH, PROGRAM, *options],
    }
    if find_spec("scalene"):
        where = str(folder / "scalene.json")
        found["Scalene"] = [python, "-m", "scalene", "run", "-o", where, PROGRAM, "---", *options]
    if find_spec("traceml"):
        found["TraceML"] = [str(Path(python).parent / "traceml"), "run", PROGRAM, "--args", *options]
    return found


def run_once(command: list[str], out: Path) -> dict[str, Any]:
    """The program's own result, or why there is none."""
    out.unlink(missing_ok=True)
    result = subprocess.run(command, capture_output=True, text=True, cwd=out.parent, check=False)
    if not out.is_file():
        last = (result.stderr or result.stdout).strip().splitlines()[-1:]
        return {"failed": f"exit code {result.returncode}: {' '.join(last)[:300]}"}
    return json.loads(out.read_text(encoding="utf-8"))


def measure(*, rounds: int, steps: int, batch: int, workers: int) -> dict[str, list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "out.json"
        options = ["--steps", steps, "--batch", batch, "--workers", workers, "--out", out]
        commands = ways(folder, [str(option) for option in options])
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
        for number in range(rounds):
            for name, command in commands.items():
                runs[name].append(run_once(command, out))
                print(f"round {number + 1}, {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    return runs


def overhead(runs: dict[str, list[dict[str, Any]]], name: str, key: str) -> dict[str, float] | None:
    """Median, lowest and highest of time / plain time - 1 over rounds; None if a run failed."""
    pairs = zip(runs[name], runs["plain"], strict=True)
    ratios = sorted(run[key] / plain[key] - 1 for run, plain in pairs if key in run and key in plain)
    if not ratios:
        return None
    return {"median": statistics.median(ratios), "low": ratios[0], "high": ratios[-1], "runs": len(ratios)}


def _columns(wall: dict[str, float], whole: dict[str, float], cpu: dict[str, float]) -> tuple[float, ...]:
    return wall["median"], wall["low"], wall["high"], whole["median"], cpu["median"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=105)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    runs = measure(rounds=options.rounds, steps=options.steps, batch=options.batch, workers=options.workers)
    rows = {
        name: {
            "wall": overhead(runs, name, "loop_s"),
            "cpu": overhead(runs, name, "cpu_s"),
            "whole": overhead(runs, name, "whole_s"),
            "identical": all(
                run.get("weights") == runs["plain"][0].get("weights")
                for run in runs[name]
                if "failed" not in run
            ),
        }
        for name in runs
    }
    import torch

    print(f"{'way':<20}{'wall':>9}{'lowest':>9}{'highest':>9}{'whole':>9}{'CPU':>9}  same weights  bar")
    for name, row in rows.items():
        wall, cpu, whole = row["wall"], row["cpu"], row["whole"]
        if wall is None or cpu is None or whole is None:
            print(f"{name:<20} {runs[name][0].get('failed')}")
            continue
        texts = [f"{value:>+9.1%}" for value in _columns(wall, whole, cpu)]
        bar = f"<= {BARS[name]:.0%}" if name in BARS else ""
        print(f"{name:<20}{''.join(texts)}  {'yes' if row['identical'] else 'no':<12}  {bar}")
    if options.output:
        record = {
            "command": " ".join(sys.argv),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "machine": machine.describe(),
            "created": now(),
            "overheads": rows,
            "bars": BARS,
            "runs": runs,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
