"""The section of findings that `scan --format json` printed."""

from __future__ import annotations

from collections import Counter

from pinchpoint.core.units import show_count
from pinchpoint.reporting.answers import CHANGES, Answer
from pinchpoint.reporting.html import Column, Tile, panel, place, prose, table
from pinchpoint.reporting.other_records import FindingsFile
from pinchpoint.reporting.record_reader import count, word
from pinchpoint.reporting.section import Entry, Headline

KIND = "findings"
TITLE = "Findings"
NOUNS = ("file of findings", "files of findings")
ABOUT = "What scan found in the source, without running it."
ORDER = 6

ROWS_SHOWN = 200


def entry(record: FindingsFile) -> Entry:
    total = len(record.findings)
    rules = Counter(f"{word(f, 'rule')} {word(f, 'name')}".strip() for f in record.findings)
    fixable = sum(bool(finding.get("fixable")) for finding in record.findings)
    rows = [
        (
            f"{word(finding, 'rule')} {word(finding, 'name')}",
            place(word(finding, "file"), count(finding, "line") or 0),
            prose(word(finding, "message")),
            prose(word(finding, "hint")),
        )
        for finding in record.findings[:ROWS_SHOWN]
    ]
    columns = (Column("rule"), Column("line", "code"), Column("what", "prose"), Column("hint", "prose"))
    note = f"The first {ROWS_SHOWN} of {total:,}." if total > ROWS_SHOWN else ""
    changes = tuple(f"{name}: {show_count(times, 'place')}" for name, times in rules.most_common(CHANGES))
    text = (
        f"{show_count(total, 'place')} to look at; {fixable:,} can be fixed by scan --fix or --unsafe-fixes."
    )
    return Entry(
        title=record.target,
        headline=Headline(f"{total:,}", "findings", tone="warn" if total else "good"),
        answer=Answer("warn", text, changes) if total else Answer("good", "scan found nothing."),
        tags=(),
        tiles=(
            Tile("findings", f"{total:,}"),
            Tile("rules", f"{len(rules):,}"),
            Tile("fixable", f"{fixable:,}"),
        ),
        blocks=(panel("Places", table(columns, rows), note=note),) if rows else (),
    )
