"""The page of a comparison: the answer, both in one plot, and every table of changes."""

from __future__ import annotations

from pathlib import PurePath

from pinchpoint.core.records import Forecast, Study
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting.answers import Answer
from pinchpoint.reporting.axes import labelled_axis, linear_axis, log_byte_axis, log_size_axis, titled_axis
from pinchpoint.reporting.chart import Figure, Trace, Unit, bars, hover, layout, marks, path
from pinchpoint.reporting.comparisons.comparison import Change, Changes, Comparison, show_growth
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    Tone,
    badge,
    chips,
    folded_details,
    listing,
    number_columns,
    panel,
    table,
    tag,
)
from pinchpoint.reporting.section import Entry, Headline
from pinchpoint.reporting.sections.forecast import thin

KIND = "comparison"
TITLE = "Comparison"
NOUNS = ("comparison", "comparisons")
ABOUT = "What changed between two records, before and after."
ORDER = 0

ROWS_SHOWN = 16
TIMELINE_POINTS = 700
_BEFORE, _AFTER = "idle-2", "s1"


def entry(comparison: Comparison) -> Entry:
    first = comparison.tables[0].rows if comparison.tables else ()
    growth = next((row.growth for row in first if row.growth is not None), None)
    tone: Tone = "plain" if not growth else "bad" if growth > 0 else "good"
    if any(change.after is not True and change.before for change in comparison.cards):
        tone = "bad"
    return Entry(
        title=_title(comparison),
        headline=Headline("-" if growth is None else show_growth(growth), first[0].name if first else ""),
        tags=(f"two {_PLURALS.get(comparison.kind, comparison.kind + 's')}",),
        answer=Answer(tone, comparison.conclusion[0], comparison.conclusion[1:]),
        tiles=tuple(_tile(row) for row in first),
        blocks=tuple(_blocks(comparison)),
    )


def _title(comparison: Comparison) -> str:
    """Return the target, or both if their names differ; a folder alone makes no other target."""
    before, after = (
        str(getattr(record, "target", comparison.kind)) for record in (comparison.before, comparison.after)
    )
    names = [PurePath(target).name for target in (before, after)]
    return after if names[0] == names[1] else " → ".join(names)


_PLURALS = {"study": "studies", "checkpointing": "checkpointing plans"}


def _tile(row: Change) -> Tile:
    before, after, difference, percent = row.cells()
    worse = row.difference < 0 if row.unit in ("size", "factor") else row.difference > 0
    tone: Tone = "plain" if not row.difference else "bad" if worse else "good"
    changed = ", ".join(part for part in (difference, percent) if part != "-")
    return Tile(row.name, f"{before} → {after}", changed, tone)


def _blocks(comparison: Comparison) -> list[Html | Figure]:
    blocks: list[Html | Figure] = []
    before, after = comparison.before, comparison.after
    if isinstance(before, Forecast) and isinstance(after, Forecast):
        if before.timeline and after.timeline:
            blocks.append(_timelines(before, after))
        parts = next((t for t in comparison.tables if t.head == "part"), None)
        if parts:
            blocks.append(_pairs(parts))
    if isinstance(before, Study) and isinstance(after, Study):
        blocks.append(_peaks(before, after))
    if comparison.cards:
        blocks.append(_cards(comparison))
    blocks += [_table(changes) for changes in comparison.tables[1:] if changes.rows]
    blocks += [panel(title, listing(items)) for title, items in comparison.lists]
    if comparison.notes:
        blocks.append(panel("Notes", listing(comparison.notes)))
    return blocks


def _timelines(before: Forecast, after: Forecast) -> Figure:
    tops = [max(size for _, size, _ in forecast.timeline) for forecast in (before, after)]
    unit = Unit.of(tops)
    data: list[Trace] = []
    for name, role, forecast in (("before", _BEFORE, before), ("after", _AFTER, after)):
        events = thin(forecast.timeline, TIMELINE_POINTS)
        last = max(events[-1][0], 1)
        texts = [hover(f"{name}: {show_bytes(size)}", ("phase", phase)) for _, size, phase in events]
        line = path(
            [100 * event / last for event, _, _ in events],
            [unit(size) for _, size, _ in events],
            role=role,
            width=1.8,
            name=name,
            meta={"role": role, "glyph": "■"},
            fill="tozeroy",
            fillcolor=f"@{role}/0.14",
            hoverinfo="text",
            hovertext=texts,
        )
        line["line"]["shape"] = "hv"
        data.append(line)
    axes = layout(
        x=titled_axis("progress through the steps (% of the allocations)", showgrid=False, zeroline=False),
        y=linear_axis(f"allocated ({unit.name})", range=[0, unit(max(tops)) * 1.1 or 1]),
    )
    note = "Allocated bytes through the steps of both. Each run is stretched to the same width."
    return Figure("Memory through the steps", tuple(data), axes, note=note)


def _pairs(changes: Changes) -> Figure:
    """Return the parts of the peak before and after, side by side."""
    rows = sorted(changes.rows, key=lambda row: -max(row.before or 0, row.after or 0))
    unit = Unit.of([value for row in rows for value in (row.before, row.after)])
    data = []
    for name, role, values in (
        ("before", _BEFORE, [row.before or 0 for row in rows]),
        ("after", _AFTER, [row.after or 0 for row in rows]),
    ):
        texts = [
            hover(f"{row.name}, {name}", ("bytes", show_bytes(v)))
            for row, v in zip(rows, values, strict=True)
        ]
        data.append(
            bars(name, [unit(v) for v in values], range(len(rows)), role=role, texts=texts, orientation="h")
        )
    axes = layout(
        x=linear_axis(f"memory at the peak ({unit.name})"),
        y=labelled_axis([row.name for row in rows], autorange="reversed"),
        barmode="group",
        bargap=0.25,
    )
    return Figure("Parts of the peak", tuple(data), axes, height=90 + 34 * len(rows))


def _peaks(before: Study, after: Study) -> Figure:
    """Return the peaks of both studies against the size."""
    names = list(dict.fromkeys((p.variant, p.mode) for study in (before, after) for p in study.points))
    data: list[Trace] = []
    for number, (variant, mode) in enumerate(names):
        role = f"s{number % 8 + 1}"
        for label, study, symbol, dash in (
            ("before", before, "circle-open", "dot"),
            ("after", after, "circle", "solid"),
        ):
            points = [
                (p.size, p.peak_allocated_bytes)
                for p in study.points
                if (p.variant, p.mode) == (variant, mode) and p.peak_allocated_bytes
            ]
            if points:
                name = f"{variant}, {mode}, {label}"
                texts = [
                    hover(name, ("size", f"{size:,}"), ("peak", show_bytes(peak))) for size, peak in points
                ]
                data.append(
                    marks(
                        name,
                        [s for s, _ in points],
                        [p for _, p in points],
                        role=role,
                        texts=texts,
                        symbol=symbol,
                        dash=dash,
                    )
                )
    sizes = [p.size for study in (before, after) for p in study.points]
    peaks = [p.peak_allocated_bytes or 0 for study in (before, after) for p in study.points]
    axes = layout(x=log_size_axis(sizes, after.axis), y=log_byte_axis(peaks, "peak allocated"))
    return Figure(
        f"Peak vs {after.axis}", tuple(data), axes, height=420, note="Open marks and dotted lines: before."
    )


def _cards(comparison: Comparison) -> Html:
    signs: dict[bool | None, tuple[str, Tone]] = {
        True: ("✓ fits", "good"),
        False: ("✗ does not fit", "bad"),
        None: ("? unknown", "warn"),
    }
    groups: dict[tuple[bool | None, bool | None], list[str]] = {}
    for change in comparison.cards:
        groups.setdefault((change.before, change.after), []).append(change.card)
    rows = [
        (badge(*signs[before]), badge(*signs[after]), chips((card, "plain") for card in cards))
        for (before, after), cards in groups.items()
    ]
    columns = (Column("before"), Column("after"), Column("cards", "prose"))
    return panel("Cards with another answer", table(columns, rows))


def _table(changes: Changes) -> Html:
    has_code = any(row.code for row in changes.rows)
    columns = (
        Column(changes.head, "code" if changes.head in ("line", "module") else "text"),
        *number_columns("before", "after", "difference", "growth"),
        *([Column("code", "code")] if has_code else []),
    )

    def cells(row: Change) -> tuple[object, ...]:
        before, after, difference, percent = row.cells()
        worse = row.difference < 0 if row.unit in ("size", "factor") else row.difference > 0
        tone = "" if not row.difference else "worse" if worse else "better"
        marked = [tag("span", text, class_=tone) for text in (difference, percent)]
        return (row.name, before, after, *marked, *([tag("code", row.code)] if has_code else []))

    shown = changes.shown(ROWS_SHOWN)
    body = [table(columns, [cells(row) for row in shown])]
    if len(shown) < len(changes.rows):
        every = table(columns, [cells(row) for row in changes.rows])
        body.append(folded_details(f"all {len(changes.rows)} rows", every))
    return panel(changes.title, *body, note=changes.note)
