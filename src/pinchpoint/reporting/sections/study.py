"""The section of a study: how peak and time grow with size, the fitted laws, and the card table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pinchpoint.core.records import Law, Point, Study
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting import palette
from pinchpoint.reporting.answers import answer, explain_size_check
from pinchpoint.reporting.axes import exact_size, rounded_size, size_title
from pinchpoint.reporting.chart import Figure
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    Tone,
    badge,
    folded_details,
    listing,
    number_columns,
    panel,
    swatch_label,
    table,
    tag,
)
from pinchpoint.reporting.record_reader import count, number, shortlist, word
from pinchpoint.reporting.section import Entry, Headline
from pinchpoint.reporting.sections import _costs, _growth
from pinchpoint.reporting.sections._series import Series, series_of

KIND = "study"
TITLE = "Studies"
NOUNS = ("study", "studies")
ABOUT = "Peak and time as functions of the size, with fitted growth laws."
ORDER = 30

_STATUS: dict[str, Tone] = {"ok": "good", "oom": "bad", "failed": "warn", "timeout": "warn"}


def entry(record: Study) -> Entry:
    series = series_of(record)
    sizes = [p.size for p in record.points]
    span = f"{exact_size(min(sizes))} to {exact_size(max(sizes))}" if sizes else "no sizes"
    return Entry(
        title=record.target,
        answer=answer(record),
        headline=Headline(
            _slope_range(record) if record.passed else "size check failed",
            f"{record.axis} {span}",
            "size check passed" if record.passed else "",
            "good" if record.passed else "bad",
        ),
        tags=(f"axis {record.axis}", f"on {record.on}", span),
        explanation=explain_size_check(record),
        tiles=_tiles(record),
        blocks=tuple(_blocks(record, series)),
    )


def _blocks(record: Study, series: list[Series]) -> list[Html | Figure]:
    blocks: list[Html | Figure | None] = []
    if any(line.ok_points for line in series):
        blocks += [
            _growth.peaks(record, series),
            _growth.bytes_per_point(record, series),
            _growth.ratios(record, series),
        ]
    if record.laws:
        blocks.append(_laws(record, series))
    if record.cards:
        blocks.append(_cards(record))
    blocks += _costs.breakdowns(record, series)
    blocks += _costs.theory(record, series)
    blocks += [_costs.trade_off(series), _costs.modules(series)]
    if record.boundary:
        blocks.append(_boundary(record))
    if record.points:
        blocks.append(_points(record))
    if record.notes:
        blocks.append(panel("Notes", listing(record.notes)))
    return [block for block in blocks if block is not None]


def _slope_range(record: Study) -> str:
    if not record.laws:
        return f"{len(record.points)} runs"
    low, high = (pick(record.laws, key=lambda law: law.slope_bytes_per_point) for pick in (min, max))
    if low is high:
        return f"{low.slope_bytes_per_point:,.0f} B per {record.unit}"
    return f"{low.slope_bytes_per_point:,.0f} to {high.slope_bytes_per_point:,.0f} B per {record.unit}"


def _tiles(record: Study) -> tuple[Tile, ...]:
    ok_points = [p for p in record.points if p.status == "ok"]
    unfinished = len(record.points) - len(ok_points)
    tiles = [
        Tile(
            "runs",
            str(len(record.points)),
            f"{unfinished} did not finish" if unfinished else "all finished",
            "warn" if unfinished else "plain",
        )
    ]
    tiles += [
        Tile(
            f"{law.variant}, {law.mode}",
            f"{_slope(law.slope_bytes_per_point)} B",
            f"per {record.unit} + {show_bytes(law.intercept_bytes)}",
        )
        for law in [law for law in record.laws if law.mode == record.laws[0].mode][:4]
    ]
    errors = [abs(law.holdout_error) for law in record.laws if law.holdout_error is not None]
    if errors:
        worst = max(errors)
        tiles.append(
            Tile(
                "holdout error",
                f"{worst:.2%}",
                "largest size, predicted from the others",
                "good" if worst <= 0.03 else "warn",
            )
        )
    if not record.complete:
        tiles.append(Tile("state", "unfinished", "continue with --resume", "warn"))
    if record.took_s:
        tiles.append(
            Tile(
                "duration",
                show_seconds(record.took_s),
                f"{record.repeats} timed runs per size" if record.repeats else "without timing",
            )
        )
    return tuple(tiles)


def _label(variant: str, mode: str, series: list[Series]) -> Html:
    role = next((line.role for line in series if line.variant == variant), palette.OTHER)
    return swatch_label(role, f"{variant}, {mode}")


def _laws(record: Study, series: list[Series]) -> Html:
    def row(law: Law) -> tuple[object, ...]:
        slope = _with_interval(_slope, law.slope_bytes_per_point, law.slope_low, law.slope_high)
        exponent = _with_interval(
            lambda power: f"{power:.3f}", law.exponent, law.exponent_low, law.exponent_high
        )
        breaks = ", ".join(rounded_size(edge) for edge in law.breaks) or "none"
        holdout = "-" if law.holdout_error is None else f"{law.holdout_error:+.2%}"
        intercept, name = show_bytes(law.intercept_bytes), _label(law.variant, law.mode, series)
        return name, slope, intercept, exponent, breaks, holdout, f"{law.residual:.2%}", law.points or "-"

    rest = number_columns(
        f"B per {record.unit}", "fixed part", "exponent", "breaks at", "held-out error", "residual", "sizes"
    )
    note = (
        f"Peak = bytes per {record.unit} x size + fixed part, for the last segment."
        " Small figures are 95 % intervals. An exponent of 1 is linear growth."
    )
    rows = [row(law) for law in record.laws]
    return panel("Growth laws", table((Column("series"), *rest), rows), note=note)


def _slope(value: float) -> str:
    """Format bytes per point with two decimals, but never as a rounded zero."""
    return f"{value:,.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def _with_interval(
    text: Callable[[float], str], value: float | None, low: float | None, high: float | None
) -> Html:
    """Return a number with its 95 % interval below it."""
    interval = tag("small", f"{text(low)} to {text(high)}") if low is not None and high is not None else None
    return tag("span", "-" if value is None else text(value), interval, class_="stack")


def _cards(record: Study) -> Html:
    """Return the largest size per card (rows), variant and mode (columns)."""
    across = list(dict.fromkeys((word(item, "variant"), word(item, "mode")) for item in record.cards))
    cells = {(word(item, "card"), word(item, "variant"), word(item, "mode")): item for item in record.cards}

    def cell(card: str, variant: str, mode: str) -> object:
        item = cells.get((card, variant, mode))
        if item is None or count(item, "size") == 0:
            return tag("span", "none" if item else "-", class_="quiet")
        if count(item, "size") is None:
            return "no limit"
        low, high = (
            count(item, "low"),
            "no limit" if count(item, "high") is None else rounded_size(count(item, "high")),
        )
        interval = tag("small", f"{rounded_size(low)} to {high}") if low is not None else None
        return tag(
            "span",
            rounded_size(count(item, "size")) + ("*" if item.get("extrapolated") else ""),
            interval,
            class_="stack",
        )

    memory = {word(item, "card"): number(item, "memory_bytes") for item in record.cards}
    columns = (
        Column("card"),
        *number_columns("memory", *(f"{variant}, {mode}".strip(", ") for variant, mode in across)),
    )

    def rows(names: Sequence[str]) -> list[tuple[object, ...]]:
        return [
            (tag("strong", n), show_bytes(memory[n]), *(cell(n, variant, mode) for variant, mode in across))
            for n in names
        ]

    short = shortlist(memory)
    body = [table(columns, rows(short))]
    if len(short) < len(memory):
        body.append(folded_details(f"all {len(memory)} cards", table(columns, rows(list(memory)))))
    note = f"The largest {size_title(record.axis)} that fits by the law, with its 95 % interval."
    note += (
        " An asterisk (*) marks a size beyond those studied."
        if any(item.get("extrapolated") for item in record.cards)
        else ""
    )
    return panel("Largest size per card", *body, note=note)


def _boundary(record: Study) -> Html:
    columns = (
        Column("variant"),
        Column("mode"),
        *number_columns("largest that ran", "smallest that did not"),
    )
    rows = [
        (
            word(item, "variant"),
            word(item, "mode"),
            exact_size(count(item, "fits")),
            exact_size(count(item, "fails")),
        )
        for item in record.boundary
    ]
    note = "Found by bisection between the last size that ran and the first that did not."
    return panel("Memory boundary", table(columns, rows), note=note)


def _points(record: Study) -> Html:
    def row(point: Point) -> tuple[object, ...]:
        sizes = (
            exact_size(point.size),
            exact_size(point.processed),
            badge(point.status, _STATUS[point.status]),
        )
        peaks = (point.peak_allocated_bytes, point.peak_reserved_bytes, point.theory_bytes)
        return (
            point.variant,
            point.mode,
            *sizes,
            *map(show_bytes, peaks),
            show_seconds(point.time_s),
            point.reason,
        )

    first = (Column("variant"), Column("mode"), *number_columns("size", "processed"), Column("status"))
    columns = (*first, *number_columns("allocated", "reserved", "theory", "step"), Column("reason"))
    unfinished = [row(p) for p in record.points if p.status != "ok"]
    body = [table(columns, unfinished)] if unfinished else []
    body.append(
        folded_details(f"all {len(record.points)} runs", table(columns, [row(p) for p in record.points]))
    )
    note = "Runs that did not finish come first; the study continued without them." if unfinished else ""
    return panel("Runs", *body, note=note)
