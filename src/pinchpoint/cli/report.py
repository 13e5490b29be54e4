"""Put records on one page that opens offline."""

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
    """Make one self-contained page of any records: interactive plots and tables, light and dark, printable.

    The page holds everything it needs and asks for nothing outside itself. It is written whole or not at all.
    """
    from pinchpoint.reporting.report import report

    path = report(records, output)
    count = f"{len(records)} record" + ("" if len(records) == 1 else "s")
    printing.show(f"{path}: {count}, {path.stat().st_size / 1e6:.1f} MB")
    return 0
