"""`Suite`: a folder of programs that are predicted and measured, and the bars of the comparison.

Every suite has a `run.py` with the verbs predict, measure and table. `predict` hides the GPU, so it runs on
any machine; the libraries must be importable. `measure` needs a GPU: each program runs unmodified in its own
process, and once more with the memory from which its forecast says that it fits; with `--measured FILE`, the
peaks are those of an earlier run, and only the second run is made; it reads records too. `table` writes the
record and the page, and exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forecasts
import measurements
import table as tables
from programs import Program, find_programs, package_versions

from pinchpoint.core import machine
from pinchpoint.core.records import now, script_command

GIB = 2**30
RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Suite:
    """folder: has the programs, each in a folder of it. record: where `table` writes.

    find: the programs, or those in a comma-separated list, if they are not simply the files of the folder.
    """

    folder: Path
    record: Path
    title: str
    judge: Callable[[list[tables.Row]], list[tables.Bar]]
    find: Callable[[str | None], list[Program]] | None = None

    def programs(self, only: str | None = None) -> list[Program]:
        return find_programs(only, self.folder) if self.find is None else self.find(only)


def read(path: Path) -> dict[str, Any]:
    """What predict or measure wrote, or a record with both."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"The file {path} cannot be read: {error}\n"
            "  hint: Create it with this program's predict or measure."
        ) from error


def read_cases(path: Path, side: str) -> dict[str, Any]:
    """The predicted or measured cases, by program."""
    data = read(path)
    return data["cases"] if "cases" in data else {row["name"]: row[side] for row in data["programs"]}


def start_file(path: Path, programs: list[Program], **about: Any) -> dict[str, Any]:
    """The content of a new file; the cases of programs that are not run again come from the old file."""
    old = read(path)["cases"] if path.exists() else {}
    rerun = {program.name for program in programs}
    return {
        "command": script_command(),
        "created": now(),
        "packages": package_versions(programs),
        **about,
        "cases": {name: case for name, case in old.items() if name not in rerun},
    }


def last_seconds(record: Path) -> Callable[[Program], float]:
    """How long the forecast of a program took in a record; one that is not in it may take longest."""
    rows = read(record)["programs"] if record.exists() else []
    seconds = {row["name"]: row["predicted"].get("seconds", math.inf) for row in rows}
    return lambda program: seconds.get(program.name, math.inf)


def save(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def show(program: Program, case: dict[str, Any], seconds: float) -> None:
    peak = case.get("peak_allocated_bytes")
    text = (
        f"{peak / GIB:8.3f} GiB" if case["status"] == "ok" and peak else f"{case['status']}: {case['reason']}"
    )
    print(f"{program.name:40} {text}  ({seconds:.0f} s)", flush=True)


def predict(args: argparse.Namespace) -> int:
    programs = args.suite.programs(args.only)
    data = start_file(args.output, programs, machine=machine.describe(), gpu_hidden=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        waiting = {
            pool.submit(forecasts.predict, program, card=args.card, timeout_s=args.timeout_s): program
            for program in sorted(programs, key=last_seconds(args.suite.record), reverse=True)
        }
        for future in as_completed(waiting):
            program, case = waiting[future], future.result()
            data["cases"][program.name] = case
            save(args.output, data)
            show(program, case, case["seconds"])
    return 0


def measure(args: argparse.Namespace) -> int:
    programs = args.suite.programs(args.only)
    about = measurements.describe_machine()
    if not about["machine"]["gpu"]:
        print(
            "No CUDA device is available on this machine.\n  hint: Run measure on a machine with a GPU.",
            file=sys.stderr,
        )
        return 3
    limits = forecast_limits(read_cases(args.predicted, "predicted")) if args.predicted else {}
    known = {}
    if args.measured:
        earlier = read_cases(args.measured, "measured")
        known = {name: case for name, case in earlier.items() if case["status"] == "ok"}
        programs = [program for program in programs if program.name in limits and program.name in known]
    data = start_file(args.output, programs, **about)
    data["cases"] = {**known, **data["cases"]}
    for program, case in measurements.measure_all(
        programs,
        limits,
        known,
        at_once=args.jobs,
        timeout_s=args.timeout_s,
        total_s=args.total_s,
        traces=args.traces,
    ):
        data["cases"][program.name] = case
        save(args.output, data)
        show(program, case, case.get("wall_s", 0.0))
    return 0


def forecast_limits(cases: dict[str, Any]) -> dict[str, int]:
    """The memory from which each forecast says that its program fits; one with reasons says nothing."""
    return {
        name: case["needs_bytes"]
        for name, case in cases.items()
        if case.get("needs_bytes") and not case.get("reasons")
    }


def table(args: argparse.Namespace) -> int:
    predicted, measured = read(args.predicted), read(args.measured)
    suite: Suite = args.suite
    rows = tables.join(suite.programs(), predicted, measured)
    bars = suite.judge(rows)
    text = tables.markdown(suite.title, rows, bars, predicted, measured)
    save(args.record, tables.record(f"benchmarks/{suite.folder.name}", rows, bars, predicted, measured))
    args.record.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text, end="")
    return 0 if all(bar.met for bar in bars) else 1


def main(suite: Suite, about: str, argv: list[str] | None = None) -> int:
    """Run one verb. about: the description that --help prints."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="predict|measure|table")
    for name, verb_run, summary in (
        ("predict", predict, "Forecast every program; the GPU is hidden."),
        ("measure", measure, "Run every program on the GPU, then once more under the forecast's limit."),
        ("table", table, "Compare the two, judge the bars and write the record."),
    ):
        verb = verbs.add_parser(name, help=summary, description=summary)
        verb.set_defaults(run=verb_run, suite=suite)
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
            verb.add_argument("--measured", type=Path, help="Earlier peaks: only run under the limits.")
            verb.add_argument("--total-s", type=float, default=3600.0, help="Time limit for all programs.")
            verb.add_argument("--traces", type=Path, help="Folder for the allocations of every program.")
        if name == "table":
            verb.add_argument("--measured", type=Path, required=True, help="What measure wrote.")
            verb.add_argument("--record", type=Path, default=suite.record)
    args = parser.parse_args(argv)
    return args.run(args)
