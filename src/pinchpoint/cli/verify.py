"""Verify that a variant computes the same as its baseline, and whether it is better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from pinchpoint.core.records import Verdict


def command(
    target: str = options.TARGET,
    variant: str = typer.Option(
        None, "--variant", help="Verify only this variant. Default: all except the baseline."
    ),
    size: str = typer.Option(None, "--size", help="Number of points. Default: the workload's own."),
    mode: str = options.MODE,
    settings: list[str] = options.SET,
    device: str = typer.Option("auto", "--device", help="auto, cpu or cuda."),
    seed: int = typer.Option(0, "--seed", help="First seed of weights, data and random draws."),
    repeats: int = typer.Option(30, "--repeats", help="Number of timed pairs of steps."),
    draws: int = typer.Option(16, "--draws", help="Number of seeds for a random workload, 8 to 20."),
    limit: float = typer.Option(
        60.0, "--limit", help="Seconds to spend on timing. Slow steps get fewer pairs, but at least 8."
    ),
    strict: bool = typer.Option(False, "--strict", help="Exit with code 1 for an inconclusive verdict too."),
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        metavar="FILE.json",
        help="Write the record here; several variants are written to FILE-VARIANT.json.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the records instead of the summaries."),
) -> int:
    """Compare a variant with its baseline: results, gradients or distributions, then speed and peak.

    The exit code is 0 if every verdict passes or is inconclusive, and 1 if one fails. With --strict, it is
    also 1 if one is inconclusive.
    """
    from pinchpoint.core.files import check_output
    from pinchpoint.core.settings import parse_pairs
    from pinchpoint.verification.verify import variants_of, verify

    names = variants_of(target, variant)
    overrides = parse_pairs(settings or ())
    paths = {name: _path(output, name, several=len(names) > 1) for name in names}
    for path in paths.values():
        if path is not None:
            check_output(path)
    verdicts: list[Verdict] = []
    for name in names:
        with printing.progress(f"verify {name}") as progress:
            verdict = verify(
                target,
                variant=name,
                size=size,
                mode=mode,
                device=device,
                seed=seed,
                repeats=repeats,
                draws=draws,
                limit_s=limit,
                settings=overrides,
                progress=progress,
            )
        path = paths[name]
        if path is not None:
            verdict.save(path)
        if not as_json:
            _show(verdict, first=not verdicts)
        verdicts.append(verdict)
    if as_json:
        text = (
            verdicts[0].to_json()
            if len(verdicts) == 1
            else "[" + ",\n".join(verdict.to_json() for verdict in verdicts) + "]"
        )
        printing.show_json(text)
    bad = ("fail", "inconclusive") if strict else ("fail",)
    return int(any(verdict.status in bad for verdict in verdicts))


def _path(output: Path | None, variant: str, *, several: bool) -> Path | None:
    if output is None or not several:
        return output
    return output.with_name(f"{output.stem}-{variant}{output.suffix}")


def _show(verdict: Verdict, *, first: bool) -> None:
    from pinchpoint.reporting.answers import answer

    if not first:
        printing.stdout().print()
    answered = answer(verdict)
    printing.show_answer(answered.text, tone=answered.tone)
    printing.stdout().print()
    printing.show_summary(verdict)
    refusals = [c for c in verdict.comparisons if not c["ok"]]
    if refusals:
        errors = ["-" if c["error"] is None else f"{c['error']:.2e}" for c in refusals]
        rows = [
            (c["what"], c["name"], e, c["where"], c["reason"]) for c, e in zip(refusals, errors, strict=True)
        ]
        printing.show_narrow_table(
            ("refused", "name", "error", "worst at", "why"), rows[:10], right=("error",)
        )
        if len(rows) > 10:
            printing.say(f"and {len(rows) - 10} more; use -o FILE.json to store them all")
    for note in verdict.notes:
        printing.say(f"note: {note}")
