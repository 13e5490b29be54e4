"""Write a self-contained report page from records, or compare two records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from pinchpoint.reporting.comparisons.comparison import Comparison

_ROWS = 10  # of each table of a comparison


def command(
    records: list[Path] = typer.Argument(
        ..., metavar="RECORD.json...", help="Records written by the other verbs with -o."
    ),
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        metavar="FILE.html",
        help="The page to write. Default: report.html or compare.html.",
    ),
    compare: bool = typer.Option(
        False, "--compare", help="Compare two records of the same kind: the one before, then the one after."
    ),
    markdown: Path = typer.Option(
        None, "--markdown", metavar="FILE.md", help="With --compare: also write the comparison as Markdown."
    ),
    max_growth: str = typer.Option(
        None,
        "--max-growth",
        metavar="PERCENT",
        help="With --compare: exit with 1 if the peak grows by more than this, such as 5%.",
    ),
    card: str = typer.Option(
        None, "--card", help="With --compare: exit with 1 unless the record after is known to fit this card."
    ),
) -> int:
    """Write one self-contained page from records: interactive plots and tables, light and dark, printable.

    The page contains everything it needs and opens offline. It is written completely or not at all.
    `report before.json after.json --compare` writes a page about what changed, and prints it as tables.
    """
    from pinchpoint.core.errors import BadInput
    from pinchpoint.core.files import check_output, write_text
    from pinchpoint.reporting.comparisons.compare import compare as compare_records
    from pinchpoint.reporting.report import report

    output = output or Path("compare.html" if compare else "report.html")
    if not compare:
        for name, value in (("--markdown", markdown), ("--max-growth", max_growth), ("--card", card)):
            if value is not None:
                raise BadInput(f"{name} is for comparisons.", hint=f"Add --compare, or leave {name} out.")
        path = report(records, output)
        count = f"{len(records)} record" + ("" if len(records) == 1 else "s")
        printing.show(f"{path}: {count}, {path.stat().st_size / 1e6:.1f} MB")
        return 0
    limit = None if max_growth is None else options.parse_growth(max_growth)
    if markdown is not None:
        check_output(markdown)
    path = report(records, output, compare=True)
    comparison = compare_records(*records)
    failures = comparison.failures(max_growth=limit, card=card)
    if markdown is not None:
        failed = "".join(f"> **{sentence}**\n\n" for sentence in failures)
        write_text(markdown, failed + comparison.to_markdown())
    _show(comparison)
    for sentence in failures:
        printing.show_narrow(sentence, style="bold red")
    printing.say(f"the page is in {path}")
    return 1 if failures else 0


def _show(comparison: Comparison) -> None:
    tone = "plain" if not comparison.growth else "bad" if comparison.growth > 0 else "good"
    printing.show_answer(comparison.conclusion[0], tone=tone)
    for sentence in comparison.conclusion[1:]:
        printing.show_narrow(sentence)
    for table in comparison.tables:
        rows = [(_end(row.name), *row.cells()) for row in table.shown(_ROWS)]
        if rows:
            columns = (table.head, "before", "after", "difference", "growth")
            printing.stdout().print()
            printing.show_narrow_table(columns, rows, right=columns[1:])
    for title, items in comparison.lists:
        printing.show_narrow(f"\n{title}:")
        for item in items[:_ROWS]:
            printing.show_narrow(f"  {item}")
    printing.stdout().print()
    for note in comparison.notes:
        printing.say(f"note: {note}")


def _end(name: str, width: int = 34) -> str:
    return name if len(name) <= width else "..." + name[3 - width :]
