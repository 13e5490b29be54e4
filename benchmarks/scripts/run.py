"""The benchmark of public code: programs as the documentation of their libraries writes them.

    python benchmarks/scripts/run.py predict -o predicted.json
    python benchmarks/scripts/run.py measure -o measured.json --predicted predicted.json
    python benchmarks/scripts/run.py table --predicted predicted.json --measured measured.json

`predict` hides the GPU, so it runs on any machine; the libraries must be importable. `measure` needs a GPU:
each program runs unmodified in its own process, and once more with the memory from which its forecast says
that it fits. `table` writes the record and the page, and exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jobs
import table as tables
from programs import Program, find_programs, package_versions

GIB = 2**30
RESULTS = Path(__file__).parents[1] / "results"


def read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"The file {path} cannot be read: {error}\n"
            "  hint: Create it with this program's predict or measure."
        ) from error


def start_file(path: Path, programs: list[Program], **about: Any) -> dict[str, Any]:
    """The content of a new file; the cases of programs that are not run again come from the old file."""
    from pinchpoint.core import machine
    from pinchpoint.core.records import now

    old = read(path)["cases"] if path.exists() else {}
    rerun = {program.name for program in programs}
    return {
        "command": shlex.join(["python", *sys.argv]),
        "created": now(),
        "machine": machine.describe(),
        "packages": package_versions(programs),
        **about,
        "cases": {name: case for name, case in old.items() if name not in rerun},
    }


def run_all(
    programs: list[Program], job: Callable[[Program], dict[str, Any]], *, at_once: int
) -> Iterator[tuple[Program, dict[str, Any]]]:
    """Yield each program's case as it is ready; programs that must run alone come last, one by one."""
    with ThreadPoolExecutor(at_once) as pool:
        waiting = {pool.submit(job, program): program for program in programs if not program.alone}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    for program in programs:
        if program.alone:
            yield program, job(program)


def save(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def show(program: Program, case: dict[str, Any], seconds: float) -> None:
    peak = case.get("peak_allocated_bytes")
    text = (
        f"{peak / GIB:8.3f} GiB" if case["status"] == "ok" and peak else f"{case['status']}: {case['reason']}"
    )
    print(f"{program.name:40} {text}  ({seconds:.0f} s)", flush=True)


def predict(args: argparse.Namespace) -> int:
    programs = find_programs(args.only)
    data = start_file(args.output, programs, gpu_hidden=True)
    # The kernel search concerns measurements only: forecasts need not wait for each other.
    free = [Program(p.name, p.path, p.about, p.packages, alone=False) for p in programs]
    for program, case in run_all(
        free, lambda p: jobs.predict(p, card=args.card, timeout_s=args.timeout_s), at_once=args.jobs
    ):
        data["cases"][program.name] = case
        save(args.output, data)
        show(program, case, case["seconds"])
    return 0


def measure(args: argparse.Namespace) -> int:
    import torch

    if not torch.cuda.is_available():
        print(
            "No CUDA device is available on this machine.\n  hint: Run measure on a machine with a GPU.",
            file=sys.stderr,
        )
        return 3
    programs = find_programs(args.only)
    forecasts = read(args.predicted)["cases"] if args.predicted else {}
    about = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    data = start_file(args.output, programs, **about)
    deadline = time.monotonic() + args.total_s

    def job(program: Program) -> dict[str, Any]:
        if time.monotonic() > deadline:
            return {"status": "skipped", "reason": "The time for all programs was used up."}
        case = jobs.measure(program, cap_bytes=None, timeout_s=args.timeout_s)
        forecast = forecasts.get(program.name, {})
        claims = forecast.get("needs_bytes") and not forecast["reasons"]  # otherwise nothing is said to fit
        if case["status"] == "ok" and claims and time.monotonic() < deadline:
            cap = forecast["needs_bytes"]
            capped = jobs.measure(program, cap_bytes=cap, timeout_s=args.timeout_s)
            case["capped"] = {"limit_bytes": cap, "ran": capped["status"] == "ok", **capped}
        return case

    for program, case in run_all(programs, job, at_once=args.jobs):
        data["cases"][program.name] = case
        save(args.output, data)
        show(program, case, case.get("wall_s", 0.0))
    return 0


def table(args: argparse.Namespace) -> int:
    predicted, measured = read(args.predicted), read(args.measured)
    rows = tables.join(find_programs(), predicted, measured)
    bars = tables.judge(rows)
    text = tables.markdown(rows, bars, predicted, measured)
    save(args.record, tables.record(rows, bars, predicted, measured))
    args.record.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text, end="")
    return 0 if all(bar.met for bar in bars) else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="predict|measure|table")
    for name, verb_run, about in (
        ("predict", predict, "Forecast every program; the GPU is hidden."),
        ("measure", measure, "Run every program on the GPU, then once more under the forecast's limit."),
        ("table", table, "Compare the two, judge the bars and write the record."),
    ):
        verb = verbs.add_parser(name, help=about, description=about)
        verb.set_defaults(run=verb_run)
        if name != "table":
            verb.add_argument("-o", "--output", type=Path, required=True)
            verb.add_argument("--only", help="Comma-separated names of programs or folders.")
            verb.add_argument("--timeout-s", type=float, default=120.0, help="Time limit per program.")
            verb.add_argument("--jobs", type=int, default=8, help="Programs at one time (default: 8).")
        if name == "predict":
            verb.add_argument("--card", default="h200")
        else:
            verb.add_argument("--predicted", type=Path, required=name == "table", help="What predict wrote.")
        if name == "measure":
            verb.add_argument("--total-s", type=float, default=3600.0, help="Time limit for all programs.")
        if name == "table":
            verb.add_argument("--measured", type=Path, required=True, help="What measure wrote.")
            verb.add_argument("--record", type=Path, default=RESULTS / "scripts_h200.json")
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
