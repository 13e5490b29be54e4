"""Show what pinchpoint does on this machine: a verdict and a picture of each system, in one report.

Each system describes its part in a module `demo.py`; see `pinchpoint.core.demo`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.console import printing

if TYPE_CHECKING:
    from pinchpoint.core.demo import Show
    from pinchpoint.demo.stages import Message
    from pinchpoint.demo.table import Outcome

REPORT = "report.html"


def command(
    output: Path = typer.Option(
        Path("demo"),
        "-o",
        "--output",
        help="Folder for the pictures, the records and report.html; created if it is missing.",
    ),
    only: list[str] = typer.Option(
        [],
        "--only",
        metavar="SYSTEM",
        help="Show only this system; may be repeated, or a list such as vmc,cloud.  [default: all]",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of weights and data."),
    device: str = typer.Option("auto", "--device", help="Where verify runs: auto, cpu or cuda."),
) -> int:
    """Verify a tuned variant of each system, draw what the systems compute, and write one report.

    Takes about a minute on two cores. Needs no GPU: times are those of this machine, and peaks are predicted.
    """
    from pinchpoint.core.discovery import demo_modules
    from pinchpoint.core.files import check_output, make_folder
    from pinchpoint.demo.processes import run_systems
    from pinchpoint.demo.table import Outcome

    shows = _choose(sorted((m.SHOW for m in demo_modules()), key=lambda show: show.order), only)
    missing = {show.workload: [name for name in show.needs if not _installed(name)] for show in shows}
    _report_missing(missing)
    make_folder(output)
    check_output(output / REPORT)
    outcomes = {show.workload: Outcome(show) for show in shows if not missing[show.workload]}
    start = time.perf_counter()
    # The longest systems first, so that no process is idle at the end.
    names = sorted(outcomes, key=lambda name: -outcomes[name].show.cost_s)
    kept = f"what is finished is in {output}"
    with printing.explain_interrupt(kept), _progress() as tell:

        def on_message(message: Message) -> None:
            outcomes[message["system"]].add(message)
            tell(message)

        run_systems(names, output, seed=seed, device=device, on_message=on_message)
    page = _write_report(list(outcomes.values()), output)
    _show_table(shows, outcomes)
    _show_files(list(outcomes.values()), page, time.perf_counter() - start)
    return 0 if all(outcome.passed for outcome in outcomes.values()) else 1


def _choose(shows: list[Show], only: list[str]) -> list[Show]:
    from pinchpoint.core.errors import BadInput
    from pinchpoint.core.units import show_choices

    names = [name.strip() for text in only for name in text.split(",") if name.strip()]
    known = [show.workload for show in shows]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInput(
            f"The demo has no system named {unknown[0]!r}.", hint=f"Give --only {show_choices(known)}."
        )
    return [show for show in shows if show.workload in names] if names else shows


def _report_missing(missing: dict[str, list[str]]) -> None:
    """Say which systems are skipped; raise if all are."""
    from pinchpoint.core.errors import Missing

    if all(missing.values()):
        packages = sorted({name for names in missing.values() for name in names})
        raise Missing(
            f"Nothing can be shown, because packages are not installed: {', '.join(packages)}.",
            hint="Run pip install 'pinchpoint[all]'.",
        )
    for name, packages in missing.items():
        if packages:
            verb = "is" if len(packages) == 1 else "are"
            printing.say(f"skipping {name}: {', '.join(packages)} {verb} not installed")


@contextmanager
def _progress() -> Iterator[Callable[[Message], None]]:
    """Print one line for every finished stage; on a terminal, also show which stages are running."""
    start, running = time.perf_counter(), dict[str, str]()
    with printing.status_line() as show_status:

        def tell(message: Message) -> None:
            name, stage = message["system"], message.get("stage", "")
            if "seconds" in message or "error" in message:
                running.pop(name, None)
                result = "failed" if "error" in message else message.get("result", "")
                text = f"{message['what']}: {result}" if result else message["what"]
                took = f"{message['seconds']:5.1f} s" if "seconds" in message else ""
                printing.say(f"{name:<9} {stage:<8} {text:<50} {took}".rstrip())
            elif stage:
                running[name] = stage
            now = ", ".join(f"{name} {stage}" for name, stage in running.items())
            show_status(f"[{time.perf_counter() - start:3.0f} s] {now}")

        yield tell


def _write_report(outcomes: list[Outcome], output: Path) -> Path | None:
    from pinchpoint.reporting.report import report

    records = [path for outcome in outcomes for path in outcome.records]
    pictures = [outcome.picture for outcome in outcomes if outcome.picture is not None]
    if not records:
        return None
    return report(records, output / REPORT, pictures=[(p.path, p.title, p.caption) for p in pictures])


def _show_table(shows: list[Show], outcomes: dict[str, Outcome]) -> None:
    from pinchpoint.demo.table import COLUMNS, NUMBERS, skipped_row

    rows = [
        outcomes[show.workload].row() if show.workload in outcomes else skipped_row(show) for show in shows
    ]
    printing.show("")
    printing.show_narrow_table(COLUMNS, rows, right=NUMBERS, unbroken=COLUMNS[-1:])
    printing.show("")
    printing.show_narrow(
        "Times are medians of one step on this machine, with the systems running side by side; ratio is"
        " baseline / tuned. Peaks on the CPU are predicted for a GPU."
    )


def _show_files(outcomes: list[Outcome], page: Path | None, seconds: float) -> None:
    from pinchpoint.core.files import shown_path

    for outcome in outcomes:
        for stage, error in outcome.errors:
            printing.say(
                f"error: {outcome.show.workload} failed in {stage}: {error.what}\n  hint: {error.hint}"
            )
    printing.show("")
    for outcome in outcomes:
        if outcome.picture is not None:
            printing.show_narrow(f"{shown_path(str(outcome.picture.path))}  {outcome.picture.title}")
    last = f"open {page}" if page is not None else "there is nothing to report"
    printing.show(f"\n{len(outcomes)} systems in {seconds:.0f} s; {last}")


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
