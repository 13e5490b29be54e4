"""A study: how peak and time grow with size, the law behind it, and what each card takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pinchpoint.core.records import Law, Point, Study
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting import palette
from pinchpoint.reporting.axes import about, exact
from pinchpoint.reporting.chart import Figure
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    Tone,
    badge,
    banner,
    keyed,
    listing,
    more,
    numbers,
    panel,
    table,
    tag,
)
from pinchpoint.reporting.record_reader import count, number, shortlist, word
from pinchpoint.reporting.section import Entry, Headline
from pinchpoint.reporting.sections import _costs, _growth
from pinchpoint.reporting.sections._series import Series, series_of

KIND = "study"
TITLE = "Studies"
ABOUT = "Peak and time against size, with the law they follow."
ORDER = 30

_STATUS: dict[str, Tone] = {"ok": "good", "oom": "bad", "failed": "warn", "timeout": "warn"}


def entry(record: Study) -> Entry:
    series = series_of(record)
    sizes = [p.size for p in record.points]
    span = f"{exact(min(sizes))} to {exact(max(sizes))}" if sizes else "no sizes"
    return Entry(
        title=record.target,
        headline=Headline(
            "gate passed" if record.passed else "gate failed",
            f"{record.axis} {span}",
            _steepest(record),
            "good" if record.passed else "bad",
        ),
        tags=(f"axis {record.axis}", f"on {record.on}", span),
        lead=_gate(record),
        tiles=_tiles(record),
        blocks=tuple(_blocks(record, series)),
    )


def _blocks(record: Study, series: list[Series]) -> list[Html | Figure]:
    blocks: list[Html | Figure | None] = []
    if any(line.done for line in series):
        blocks += [
            _growth.peaks(record, series),
            _growth.bytes_a_point(record, series),
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


def _gate(record: Study) -> Html:
    if record.passed:
        return banner(
            "good",
            "✓ The axis gate passed: every size was processed as asked, and the peak grows as claimed.",
        )
    return banner("bad", "✗ The axis gate failed: do not read a law out of this study.", record.gate)


def _steepest(record: Study) -> str:
    if not record.laws:
        return f"{len(record.points)} runs"
    low, high = (pick(record.laws, key=lambda law: law.slope_bytes_per_point) for pick in (min, max))
    if low is high:
        return f"{low.slope_bytes_per_point:,.0f} B a point"
    return f"{low.slope_bytes_per_point:,.0f} to {high.slope_bytes_per_point:,.0f} B a point"


def _tiles(record: Study) -> tuple[Tile, ...]:
    done = [p for p in record.points if p.status == "ok"]
    stopped = len(record.points) - len(done)
    tiles = [
        Tile(
            "runs",
            str(len(record.points)),
            f"{stopped} did not finish" if stopped else "all finished",
            "warn" if stopped else "plain",
        )
    ]
    tiles += [
        Tile(
            f"{law.variant}, {law.mode}",
            f"{_slope(law.slope_bytes_per_point)} B",
            f"a point + {show_bytes(law.intercept_bytes)}",
        )
        for law in [law for law in record.laws if law.mode == record.laws[0].mode][:4]
    ]
    missed = [abs(law.holdout_error) for law in record.laws if law.holdout_error is not None]
    if missed:
        worst = max(missed)
        tiles.append(
            Tile(
                "held-out error",
                f"{worst:.2%}",
                "largest size, predicted from the rest",
                "good" if worst <= 0.03 else "warn",
            )
        )
    if not record.complete:
        tiles.append(Tile("state", "not complete", "--resume goes on", "warn"))
    if record.took_s:
        tiles.append(
            Tile(
                "took",
                show_seconds(record.took_s),
                f"{record.repeats} timed runs a point" if record.repeats else "nothing was timed",
            )
        )
    return tuple(tiles)


def _named(variant: str, mode: str, series: list[Series]) -> Html:
    role = next((line.role for line in series if line.variant == variant), palette.OTHER)
    return keyed(role, f"{variant}, {mode}")


def _laws(record: Study, series: list[Series]) -> Html:
    def row(law: Law) -> tuple[object, ...]:
        slope = _around(_slope, law.slope_bytes_per_point, law.slope_low, law.slope_high)
        exponent = _around(lambda power: f"{power:.3f}", law.exponent, law.exponent_low, law.exponent_high)
        breaks = ", ".join(about(edge) for edge in law.breaks) or "none"
        missed = "-" if law.holdout_error is None else f"{law.holdout_error:+.2%}"
        fixed, name = show_bytes(law.intercept_bytes), _named(law.variant, law.mode, series)
        return name, slope, fixed, exponent, breaks, missed, f"{law.residual:.2%}", law.points or "-"

    rest = numbers("B a point", "fixed part", "exponent", "breaks at", "held-out error", "residual", "sizes")
    note = "Peak = bytes a point x size + fixed part, of the last segment; small: 95 % intervals. An exponent of 1 is linear growth."
    rows = [row(law) for law in record.laws]
    return panel("Laws", table((Column("law of"), *rest), rows), note=note)


def _slope(value: float) -> str:
    """Bytes a point: two places, but never a rounded zero."""
    return f"{value:,.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def _around(text: Callable[[float], str], value: float | None, low: float | None, high: float | None) -> Html:
    """A number with its 95 % interval below it."""
    interval = tag("small", f"{text(low)} to {text(high)}") if low is not None and high is not None else None
    return tag("span", "-" if value is None else text(value), interval, class_="stack")


def _cards(record: Study) -> Html:
    """Cards down, variants and modes across: the largest size each takes."""
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
            "no limit" if count(item, "high") is None else about(count(item, "high")),
        )
        around = tag("small", f"{about(low)} to {high}") if low is not None else None
        return tag(
            "span",
            about(count(item, "size")) + ("*" if item.get("extrapolated") else ""),
            around,
            class_="stack",
        )

    memory = {word(item, "card"): number(item, "memory_bytes") for item in record.cards}
    columns = (
        Column("card"),
        *numbers("memory", *(f"{variant}, {mode}".strip(", ") for variant, mode in across)),
    )

    def rows(names: Sequence[str]) -> list[tuple[object, ...]]:
        return [
            (tag("strong", n), show_bytes(memory[n]), *(cell(n, variant, mode) for variant, mode in across))
            for n in names
        ]

    shown = shortlist(memory)
    body = [table(columns, rows(shown))]
    if len(shown) < len(memory):
        body.append(more(f"all {len(memory)} cards", table(columns, rows(list(memory)))))
    note = f"The largest size ({record.axis}) that fits, by the law, with its 95 % interval."
    note += " * beyond the sizes studied." if any(item.get("extrapolated") for item in record.cards) else ""
    return panel("Largest size by card", *body, note=note)


def _boundary(record: Study) -> Html:
    columns = (Column("variant"), Column("mode"), *numbers("largest that ran", "smallest that did not"))
    rows = [
        (word(item, "variant"), word(item, "mode"), exact(count(item, "fits")), exact(count(item, "fails")))
        for item in record.boundary
    ]
    note = "Found by halving between the last size that ran and the first that did not."
    return panel("Where memory ran out", table(columns, rows), note=note)


def _points(record: Study) -> Html:
    def row(point: Point) -> tuple[object, ...]:
        sizes = (exact(point.size), exact(point.processed), badge(point.status, _STATUS[point.status]))
        held = (point.peak_allocated_bytes, point.peak_reserved_bytes, point.theory_bytes)
        return (
            point.variant,
            point.mode,
            *sizes,
            *map(show_bytes, held),
            show_seconds(point.time_s),
            point.reason,
        )

    first = (Column("variant"), Column("mode"), *numbers("size", "processed"), Column("status"))
    columns = (*first, *numbers("allocated", "reserved", "theory", "step"), Column("reason"))
    stopped = [row(p) for p in record.points if p.status != "ok"]
    body = [table(columns, stopped)] if stopped else []
    body.append(more(f"all {len(record.points)} runs", table(columns, [row(p) for p in record.points])))
    note = "Runs that did not finish come first; the study went on without them." if stopped else ""
    return panel("Runs", *body, note=note)
