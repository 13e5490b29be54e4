"""Write a self-contained report page from records."""

from __future__ import annotations

from pathlib import Path

import typer

from pinchpoint.console import printing


def command(
    records: list[Path] = typer.Argument(
        ..., metavar="RECORD.json...", help="Records written by the other verbs with -o."
    ),
    output: Path = typer.Option(
        Path("report.html"), "-o", "--output", metavar="FILE.html", help="The page to write."
    ),
) -> int:
    """Write one self-contained page from records: interactive plots and tables, light and dark, printable.

    The page contains everything it needs and opens offline. It is written completely or not at all.
    """
    from pinchpoint.reporting.report import report

    path = report(records, output)
    count = f"{len(records)} record" + ("" if len(records) == 1 else "s")
    printing.show(f"{path}: {count}, {path.stat().st_size / 1e6:.1f} MB")
    return 0
