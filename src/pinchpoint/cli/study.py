"""Measure or predict how time and memory grow with the size, and fit the law of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from pinchpoint.core.records import Law, Study


def command(
    target: str = options.TARGET,
    sizes: str = typer.Option(
        ..., "--sizes", help="A ladder FROM:TO[:COUNT], such as 5k:1M:12, or a list 1k,2k,4k."
    ),
    modes: str = typer.Option(
        None, "--modes", help="train, infer or both with a comma; all the workload has without it."
    ),
    variants: str = typer.Option(
        None, "--variants", help="Names with commas between, or all; the baseline without it."
    ),
    on: str = typer.Option(
        "fake", "--on", help="fake (no GPU needed), cpu, cuda, or card:24GiB (CUDA capped to that)."
    ),
    output: Path = typer.Option(
        None, "-o", "--output", metavar="DIR", help="Folder for record, tables, figures, verdict."
    ),
    repeats: int = typer.Option(10, "--repeats", help="Timed runs a measured point."),
    warmup: int = typer.Option(3, "--warmup", help="Runs before the timed ones."),
    resume: bool = typer.Option(False, "--resume", help="Go on from the points already in DIR."),
    settings: list[str] = typer.Option(
        None,
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the workload; given again with another value, both are studied.",
    ),
    seed: int = options.SEED,
    timeout: float = typer.Option(300.0, "--timeout", help="Seconds one run of one point may take."),
    cards: str = typer.Option(
        None, "--cards", "--card", help="Cards of the card table: names with commas, or all."
    ),
    as_json: bool = options.AS_JSON,
) -> int:
    """Find how the peak (and, where measured, the time) of a step grows with its size.

    Each size is a point of its own, in a fresh process; running out of memory, a crash or the time
    limit is recorded and the study goes on. Exits 1 when the axis gate fails: when the points
    processed are not those asked for, or memory does not grow as claimed.
    """
    from pinchpoint.core.settings import parse_pairs
    from pinchpoint.studies.study import study
    from pinchpoint.studies.study_folder import RECORD

    try:
        with printing.progress("study") as tell:
            made = study(
                target,
                sizes=sizes,
                modes=modes,
                variants=variants,
                on=on,
                output=output,
                repeats=repeats,
                warmup=warmup,
                resume=resume,
                seed=seed,
                timeout_s=timeout,
                cards=cards,
                settings=parse_pairs(settings or ()),
                progress=lambda done, total, text: tell(f"{min(done + 1, total)}/{total} {text}"),
            )
    except KeyboardInterrupt as stop:
        if output is None or not (output / RECORD).is_file():
            raise
        printing.say(f"stopped; what is done is kept in {output / RECORD}: go on with --resume")
        raise SystemExit(130) from stop
    if as_json:
        printing.show_json(made.to_json())
    else:
        _show(made, output)
    return 0 if made.passed else 1


def _show(made: Study, output: Path | None) -> None:
    from pinchpoint.core.settings import show_settings
    from pinchpoint.core.units import show_bytes, show_seconds, show_size

    counts = {s: sum(p.status == s for p in made.points) for s in ("ok", "oom", "failed", "timeout")}
    ran = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    printing.show(
        f"{made.target} on {made.on}: {len(made.points)} points along {made.axis} ({ran}), {show_seconds(made.took_s)}"
    )
    if made.settings:
        printing.show(f"settings: {show_settings(made.settings)}")
    if made.laws:
        printing.show("")
        rows = [
            (
                law.variant,
                law.mode,
                f"{law.slope_bytes_per_point:,.1f}",
                _half(law),
                show_bytes(law.intercept_bytes),
                "-" if law.exponent is None else f"{law.exponent:.2f}",
                "-" if law.holdout_error is None else f"{100 * law.holdout_error:.2f} %",
            )
            for law in made.laws
        ]
        numbers = ("B/point", "+-", "intercept", "exponent", "holdout")
        printing.show_table(("variant", "mode", *numbers), rows, right=numbers)
    for found in made.boundary:
        printing.show(
            f"{found['variant']} {found['mode']}: {found['fits']:,} fits, {found['fails']:,} does not"
        )
    for point in [p for p in made.points if p.status in ("failed", "timeout")][:5]:
        printing.show(f"{point.variant} {point.mode} {show_size(point.size)} {point.status}: {point.reason}")
    for note in made.notes:
        printing.say(f"note: {note}")
    printing.show(
        "\naxis gate: " + ("passed" if made.passed else "FAILED"),
        style="green" if made.passed else "bold red",
    )
    for reason in made.gate:
        printing.show(f"  {reason}")
    if output is not None:
        printing.show(f"\nwritten to {output}: verdict.md, study.json, study.csv and figures")


def _half(law: Law) -> str:
    """Half the 95 % interval, with digits to be seen."""
    half = (law.slope_high - law.slope_low) / 2
    return f"{half:,.1f}" if half >= 1 else f"{half:.2g}"
