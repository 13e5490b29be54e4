"""Programs at the boundary of their forecast, with the kernel search of cudnn.benchmark and without it.

    python benchmarks/scripts/capped.py dcgan,unet -o search_capped.json

Each program is predicted with the GPU hidden, unless --predicted names a file of run.py. It then runs with
the search forced on and off while the allocator may not reserve more than 0.97, 1.00 and 1.03 times what the
forecast says that it needs (`needs_bytes`); it must run at 1.00 and above. Runs that there is no time for are
left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forecasts
import measurements
from programs import Program, find_programs, package_versions

from pinchpoint.core.files import write_text
from pinchpoint.core.records import now

SHARES = (1.0, 0.97, 1.03)
KEPT = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "low_bytes",
    "high_bytes",
    "search_bytes",
    "needs_bytes",
)


def run_here(program: Program, limit_bytes: int, search: bool) -> dict[str, Any]:
    """Run the program in this process, with its own setting of cudnn.benchmark replaced."""
    import torch

    cudnn = torch.backends.cudnn
    cudnn.benchmark = search
    type(cudnn).benchmark = property(lambda _: search, lambda _, value: None)  # type: ignore[assignment]
    return measurements.run_program(program, limit_bytes, None)


def run(program: Program, limit_bytes: int, search: bool, left_s: float) -> dict[str, Any]:
    """Run the program in a process of its own."""
    if left_s < 5:
        return {"status": "skipped", "reason": "The time for all runs was used up."}
    command = [sys.executable, __file__, program.name, "--limit", str(limit_bytes)]
    try:
        child = subprocess.run(
            [*command, *(["--search"] if search else [])], capture_output=True, text=True, timeout=left_s
        )
    except subprocess.TimeoutExpired:
        return {"status": "skipped", "reason": "The time for all runs was used up."}
    for line in child.stdout.splitlines():
        if line.startswith("case "):
            return json.loads(line[5:])
    return {"status": "failed", "reason": child.stderr[-300:]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", help="Programs or folders, separated by commas.")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write.")
    parser.add_argument("--predicted", type=Path, help="File that `run.py predict` wrote.")
    parser.add_argument("--jobs", type=int, default=4, help="Number of processes at a time (default: 4).")
    parser.add_argument("--total-s", type=float, default=600.0, help="Time for everything (default: 600).")
    parser.add_argument("--limit", type=int, help="Run one program here with this many bytes.")
    parser.add_argument("--search", action="store_true", help="Search for kernels, with --limit.")
    args = parser.parse_args()
    programs = find_programs(args.only)
    if args.limit:
        print("\ncase " + json.dumps(run_here(programs[0], args.limit, args.search)), flush=True)
        return 0
    start = time.monotonic()
    rows: list[dict[str, Any]] = []

    def left_s() -> float:
        return args.total_s - (time.monotonic() - start)

    def predict(program: Program) -> dict[str, Any]:
        return known.get(program.name) or forecasts.predict(program, card="h200", timeout_s=left_s())

    known = json.loads(args.predicted.read_text(encoding="utf-8"))["cases"] if args.predicted else {}
    with ThreadPoolExecutor(args.jobs) as pool:
        predicted = dict(zip(programs, pool.map(predict, programs), strict=True))
        calls = [
            (program, share, search)
            for share in SHARES
            for program, case in predicted.items()
            if case["status"] == "ok"
            for search in (True, False)
        ]

        def measure(call: tuple[Program, float, bool]) -> dict[str, Any]:
            program, share, search = call
            limit = int(share * predicted[program]["needs_bytes"])
            case = run(program, limit, search, left_s())
            return {"program": program.name, "search": search, "share": share, "limit_bytes": limit, **case}

        for row in pool.map(measure, calls):
            rows.append(row)
            print(json.dumps(row), flush=True)
    wrong = [row for row in rows if row["share"] >= 1 and row["status"] not in ("ok", "skipped")]
    if args.output:
        about = measurements.describe_machine()
        record = {
            "kind": "search-capped",
            "schema": 1,
            "target": "cuDNN",
            "created": now(),
            **about,
            "packages": package_versions(programs),
            "command": f"python benchmarks/scripts/capped.py {args.only} -o {args.output.name}",
            "predicted": {p.name: {key: case.get(key) for key in KEPT} for p, case in predicted.items()},
            "rows": rows,
        }
        write_text(args.output, json.dumps(record, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
