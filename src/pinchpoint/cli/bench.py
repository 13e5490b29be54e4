"""Time the systems on this machine: the reports' baselines, our variants, and public peers, side by side.

Without a system, all of them are timed.
"""

# A system can be timed if it has a module `bench` with a function `cases`. Such modules import a framework,
# so they are imported only in the process that times the system.

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import pinchpoint.systems
from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from pinchpoint.systems.common.bench.records import Bench
    from pinchpoint.systems.common.bench.worker import Request

FOLDER = "bench"


def benches() -> dict[str, str]:
    """Return the systems that can be timed, each with the first line of its bench module's docstring.

    Imports the package of each system, but no bench module.
    """
    lines = {}
    for info in pkgutil.iter_modules(pinchpoint.systems.__path__):
        spec = find_spec(f"{pinchpoint.systems.__name__}.{info.name}.bench") if info.ispkg else None
        if info.name != "common" and spec is not None and spec.origin is not None:
            text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
            lines[info.name] = text.partition("\n")[0]
    return lines


def command(
    systems: list[str] = typer.Argument(
        None,
        metavar="[SYSTEM]...",
        help="Systems to time: cloud, density, operator, radiance, vmc.  [default: all]",
    ),
    output: Path = typer.Option(
        FOLDER, "-o", "--output", metavar="DIR", help="Folder of the records; cases in it are not run again."
    ),
    device: str = typer.Option("auto", "--device", help="Device: auto, cpu or cuda."),
    sizes: str = typer.Option(
        None,
        "--sizes",
        help="tiny, small, or report (those of the reports).  [default: report on cuda, else small]",
    ),
    case: list[str] = typer.Option(None, "--case", help="Run only this case; may be repeated."),
    repeats: int = typer.Option(15, "--repeats", help="Most timed runs of each contender."),
    limit_s: float = typer.Option(
        60.0, "--limit-s", help="Seconds for timing a case; at least 3 rounds are timed."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of weights and data."),
    engine: str = options.ENGINE,
    workers: int = options.WORKERS,
    engine_options: list[str] = options.ENGINE_OPTION,
    list_systems: bool = typer.Option(False, "--list", help="List the systems and what is timed."),
) -> int:
    """Time the systems: baselines of the optimisation reports, our variants, and public peers in turn.

    Every system runs in a process of its own. A peer that is not installed is a row without a time. The
    records are DIR/SYSTEM.json, written after every case; run the same command again to continue. The exit
    code is 1 if a case failed. With --engine, the systems run on a Ray or SLURM cluster at the same time.
    """
    known = benches()
    if list_systems:
        printing.show_table(("system", "what is timed"), sorted(known.items()))
        return 0
    from pinchpoint.studies.engines.engine import read_engine
    from pinchpoint.systems.common.bench.cluster import bench_on_cluster
    from pinchpoint.systems.common.bench.records import Bench
    from pinchpoint.systems.common.bench.worker import record_path
    from pinchpoint.systems.common.processes import refuse_several_processes

    refuse_several_processes()
    cluster = read_engine(engine, workers=workers, options=engine_options or ())
    names = _check(systems or sorted(known), known, sizes, repeats, limit_s)
    output.mkdir(parents=True, exist_ok=True)
    choices = [word for name in case or () for word in ("--case", name)]
    choices += [] if sizes is None else ["--sizes", sizes]
    timing = ("--repeats", repeats, "--limit-s", f"{limit_s:g}")
    words = printing.shell_command("bench", *names, *choices, "--device", device, *timing, "-o", output.name)
    settings = {"device": device, "sizes": sizes, "repeats": repeats, "limit_s": limit_s, "seed": seed}
    codes: dict[str, int] = {}
    with printing.explain_interrupt(f"finished cases are in {output}, and the same command runs the others"):
        cases = tuple(case) if case else None
        if cluster is not None:
            requests = [_request(name, output, cases, words, settings) for name in names]
            codes = bench_on_cluster(requests, output, cluster, tell=printing.say)
        else:
            for name in names:
                codes[name] = _run(name, output, cases, words, settings)
    records = {
        name: Bench.from_json(path.read_text(encoding="utf-8"))
        for name in names
        if (path := record_path(output, name)).exists()
    }
    if records:
        show(list(records.values()))
        printing.say(f"\nrecords: {output}")
    lost = {name: code for name, code in codes.items() if code not in (0, 1)}
    for name, code in lost.items():
        if len(names) > 1:
            printing.say(f"{name} ended with exit code {code}; the others are complete.")
    return max(codes.values()) if len(names) == 1 else int(any(codes.values()))


def show(records: list[Bench]) -> None:
    """Print one table of all systems: a row per contender of every case."""
    from pinchpoint.core.units import show_bytes
    from pinchpoint.systems.common.bench.records import show_agreement, show_ratio, show_time

    rows: list[tuple[str, ...]] = []
    for bench in records:
        for one in bench.comparisons:
            label = (bench.system, f"{one.case}, {one.size:,} {one.axis}")
            if one.failure:
                rows.append((*label, "", f"failed: {one.failure}", "", "", ""))
            for row in one.rows:
                if row.state != "ok":
                    rows.append((*label, row.name, row.state, "", "", ""))
                    continue
                peak = "" if row.peak_allocated_bytes is None else show_bytes(row.peak_allocated_bytes)
                result = "" if row.agreement is None else show_agreement(row.agreement)
                ratio = "baseline" if row.ratio is None else show_ratio(row)
                rows.append((*label, row.name, show_time(row), ratio, peak, result))
    printing.show_table(("system", "case", "name", "time", "baseline / it", "peak", "result"), _merge(rows))


def _merge(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leave out the system and the case where they are those of the row above."""
    result: list[tuple[str, ...]] = []
    for number, row in enumerate(rows):
        above = rows[number - 1][:2] if number else ("", "")
        first = "" if row[0] == above[0] else row[0]
        result.append((first, "" if row[:2] == above else row[1], *row[2:]))
    return result


def _check(
    names: list[str], known: dict[str, str], sizes: str | None, repeats: int, limit_s: float
) -> list[str]:
    from pinchpoint.core.errors import BadInput
    from pinchpoint.core.settings import suggest
    from pinchpoint.systems.common.bench.cases import SIZES

    for name in names:
        if name not in known:
            raise BadInput(f"There is no system {name!r} to time.", hint=suggest(name, sorted(known)))
    if sizes is not None and sizes not in SIZES:
        raise BadInput(f"There are no sizes {sizes!r}.", hint=suggest(sizes, SIZES))
    if repeats < 1 or limit_s <= 0:
        raise BadInput(
            f"--repeats {repeats} within --limit-s {limit_s:g} is out of range.",
            hint="Give --repeats at least 1, and --limit-s more than 0.",
        )
    return list(dict.fromkeys(names))


def _request(
    name: str, folder: Path, cases: tuple[str, ...] | None, words: str, settings: dict[str, Any]
) -> Request:
    from pinchpoint.systems.common.bench.worker import Request

    return Request(name, str(folder), cases=cases, command=words, **settings)


def _run(
    name: str, folder: Path, cases: tuple[str, ...] | None, words: str, settings: dict[str, object]
) -> int:
    """Time one system in a process of its own, whose output goes to this terminal. Returns its exit code."""
    from pinchpoint.core.errors import Missing

    framework = import_module(f"{pinchpoint.systems.__name__}.{name}").WORKLOAD.framework
    if find_spec(framework) is None:
        error = Missing(
            f"The package {framework!r} is not installed.",
            hint=f"Run pip install 'pinchpoint[{framework}]'.",
        )
        printing.say(f"{name}: {error.what}\n  hint: {error.hint}")
        return error.exit_code
    request = _request(name, folder, cases, words, settings)
    code = subprocess.run(
        [sys.executable, "-m", "pinchpoint.systems.common.bench.worker", request.to_json()], check=False
    ).returncode
    return code if code >= 0 else 128 - code
