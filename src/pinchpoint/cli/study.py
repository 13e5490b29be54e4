"""Measure or predict how time and memory grow with the size, and fit a growth law."""

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
        None,
        "--modes",
        help="train, infer, or both separated by a comma. Default: all modes of the workload.",
    ),
    variants: str = typer.Option(
        None, "--variants", help="Names separated by commas, or all. Default: the baseline."
    ),
    on: str = typer.Option(
        "fake", "--on", help="fake (needs no GPU), cpu, cuda, or card:24GiB (CUDA limited to 24 GiB)."
    ),
    output: Path = typer.Option(
        None, "-o", "--output", metavar="DIR", help="Folder for the record, tables, figures and the verdict."
    ),
    repeats: int = typer.Option(10, "--repeats", help="Timed runs per measured size."),
    warmup: int = typer.Option(3, "--warmup", help="Runs before the timed ones."),
    resume: bool = typer.Option(False, "--resume", help="Continue the study that is already in DIR."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the study that is already in DIR."),
    settings: list[str] = typer.Option(
        None,
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the workload. Repeat it with another value to study both.",
    ),
    seed: int = options.SEED,
    timeout: float = typer.Option(300.0, "--timeout", help="Time limit of one run of one size, in seconds."),
    cards: str = typer.Option(
        None,
        "--cards",
        "--card",
        help="Cards to list in the table of cards: names separated by commas, or all.",
    ),
    engine: str = options.ENGINE,
    workers: int = options.WORKERS,
    engine_options: list[str] = options.ENGINE_OPTION,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="With --engine slurm: print the sbatch script and stop."
    ),
    as_json: bool = options.AS_JSON,
) -> int:
    """Find how the peak (and, where measured, the time) of a step grows with its size.

    Each size runs in a fresh process. If it runs out of memory, crashes or reaches the time limit, this
    is recorded and the study continues. The exit code is 1 if the size check fails: if another size than
    the requested one is processed, or memory does not grow with the size as claimed. With --engine, the
    points run on a Ray or SLURM cluster; the record is the same.
    """
    from pinchpoint.core.errors import BadInput
    from pinchpoint.core.settings import parse_pairs
    from pinchpoint.studies.engines.engine import read_engine
    from pinchpoint.studies.study import sbatch_script, study
    from pinchpoint.studies.study_folder import RECORD

    cluster = read_engine(engine, workers=workers, options=engine_options or ())
    if dry_run:
        if cluster is None:
            raise BadInput("--dry-run needs a cluster.", hint="Use --engine slurm.")
        script = sbatch_script(
            target,
            engine=cluster,
            sizes=sizes,
            modes=modes,
            variants=variants,
            on=on,
            output=output,
            timeout_s=timeout,
            settings=parse_pairs(settings or ()),
        )
        typer.echo(script)
        return 0
    try:
        with printing.progress("study") as tell:
            tell(f"loading {target}")
            result = study(
                target,
                sizes=sizes,
                modes=modes,
                variants=variants,
                on=on,
                output=output,
                repeats=repeats,
                warmup=warmup,
                resume=resume,
                overwrite=overwrite,
                seed=seed,
                timeout_s=timeout,
                cards=cards,
                settings=parse_pairs(settings or ()),
                engine=cluster,
                progress=lambda done, total, text: tell(f"{min(done + 1, total)}/{total} {text}"),
            )
    except KeyboardInterrupt as stop:
        if output is None or not (output / RECORD).is_file():
            raise
        printing.say(f"stopped; finished runs are in {output / RECORD}: continue with --resume")
        raise SystemExit(130) from stop
    if as_json:
        printing.show_json(result.to_json())
    else:
        _show(result, output)
    return 0 if result.passed else 1


def _show(study: Study, output: Path | None) -> None:
    from pinchpoint.core.settings import show_settings
    from pinchpoint.core.units import show_bytes, show_seconds, show_size
    from pinchpoint.reporting.answers import answer, explain_size_check

    answered = answer(study)
    printing.show_answer(answered.text, tone=answered.tone)
    for change in answered.changes:
        printing.show_narrow(f"  {change}")
    if not study.passed:
        printing.show_narrow(explain_size_check(study))
    printing.stdout().print()
    counts = {s: sum(p.status == s for p in study.points) for s in ("ok", "oom", "failed", "timeout")}
    ran = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    runs = f"{len(study.points)} runs along {study.axis} ({ran})"
    printing.show_narrow(f"{study.target} on {study.on}: {runs}, {show_seconds(study.took_s)}")
    if study.settings:
        printing.show_narrow(f"settings: {show_settings(study.settings)}")
    if study.laws:
        printing.show_narrow("")
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
            for law in study.laws
        ]
        numbers = (f"B per {study.unit}", "+-", "intercept", "exponent", "holdout")
        printing.show_narrow_table(("variant", "mode", *numbers), rows, right=numbers)
    for limit in study.boundary:
        printing.show_narrow(
            f"{limit['variant']} {limit['mode']}: {limit['fits']:,} fits, {limit['fails']:,} does not"
        )
    for point in [p for p in study.points if p.status in ("failed", "timeout")][:5]:
        printing.show_narrow(
            f"{point.variant} {point.mode} {show_size(point.size)} {point.status}: {point.reason}"
        )
    for note in study.notes:
        printing.say(f"note: {note}")
    if output is not None:
        printing.show_narrow(f"\nwritten to {output}: verdict.md, study.json, study.csv and figures")


def _half(law: Law) -> str:
    """Half the width of the slope's 95 % interval, with at least two significant digits."""
    half = (law.slope_high - law.slope_low) / 2
    return f"{half:,.1f}" if half >= 1 else f"{half:.2g}"
