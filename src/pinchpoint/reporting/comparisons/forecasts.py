"""`compare_forecasts`: two forecasts by peak, part, source line, module and card.

Source lines are matched by their code, because an edit moves the lines below it: first the same code in the
same file, then the same code in another file, then similar code in the same file. Paths are compared
without the folders that only one of the two targets has, so that two checkouts can be compared.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pinchpoint.core.records import BREAKDOWN, Forecast
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting.comparisons.comparison import (
    CardChange,
    Change,
    Changes,
    Comparison,
    by_difference,
    show_growth,
    show_signed,
)
from pinchpoint.reporting.comparisons.conditions import differing_conditions
from pinchpoint.reporting.modules import merged_modules

SIMILAR = 0.6  # the least similarity (difflib) of two lines of code for one to be an edit of the other
CARDS_NAMED = 4


def compare_forecasts(before: Forecast, after: Forecast) -> Comparison:
    peaks = _peaks(before, after)
    parts = by_difference(_parts(before, after))
    lines = by_difference(_lines(before, after))
    modules = by_difference(_modules(before, after))
    cards = tuple(
        CardChange(card, before.fits[card], fits)
        for card, fits in after.fits.items()
        if card in before.fits and before.fits[card] is not fits
    )
    # Not the reserved peak alone: it moves in steps of up to 20 MiB, which are much of a small model's peak.
    measures = [row for row in peaks if row.name != "peak reserved" and row.growth is not None]
    grown = max(measures, key=lambda row: row.growth or 0.0, default=None)
    tables = [
        Changes("Peak", "peak", peaks),
        Changes("Parts of the peak", "part", parts),
        Changes(
            "Source lines at the peak",
            "line",
            lines,
            note="Lines are matched by their code, also if they moved.",
        ),
        Changes("Modules at the peak", "module", modules),
    ]
    return Comparison(
        kind="forecast",
        before=before,
        after=after,
        conclusion=tuple(_conclusion(before, after, parts, lines, cards)),
        tables=tuple(table for table in tables if table.rows),
        growth=grown.growth if grown else None,
        growth_of=grown.name if grown else "",
        cards=cards,
        fits=tuple(after.fits.items()),
        notes=tuple(_notes(before, after)),
    )


def _peaks(before: Forecast, after: Forecast) -> tuple[Change, ...]:
    rows = [Change("peak allocated", before.peak_allocated_bytes, after.peak_allocated_bytes)]
    if before.high_bytes is not None or after.high_bytes is not None:
        rows.append(Change("upper bound of allocated", _upper_bound(before), _upper_bound(after)))
    if before.peak_reserved_bytes is not None and after.peak_reserved_bytes is not None:
        rows.append(Change("peak reserved", before.peak_reserved_bytes, after.peak_reserved_bytes))
    rows.append(Change("total on the card", before.total_bytes, after.total_bytes))
    return tuple(rows)


def _parts(before: Forecast, after: Forecast) -> list[Change]:
    names = dict.fromkeys([*BREAKDOWN, *before.breakdown, *after.breakdown])
    rows = [Change(name, before.breakdown.get(name, 0), after.breakdown.get(name, 0)) for name in names]
    rows.append(Change("reserved but unused", _unused(before), _unused(after)))
    rows.append(Change("NCCL", before.nccl_bytes or 0, after.nccl_bytes or 0))
    rows.append(Change("context", before.context_bytes, after.context_bytes))
    return [row for row in rows if row.before or row.after]


def _upper_bound(forecast: Forecast) -> int:
    """The most that may be allocated; without a range, the peak itself."""
    return forecast.peak_allocated_bytes if forecast.high_bytes is None else forecast.high_bytes


def _unused(forecast: Forecast) -> int:
    reserved_bytes = forecast.peak_reserved_bytes or forecast.peak_allocated_bytes
    return reserved_bytes - forecast.peak_allocated_bytes


def _modules(before: Forecast, after: Forecast) -> list[Change]:
    first, second = (
        {module.name: module.bytes for module in merged_modules(f.modules)} for f in (before, after)
    )
    return [Change(name, first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])]


@dataclass(frozen=True)
class _Place:
    """The bytes of one source line in all phases."""

    file: str  # from the folder of the target on, if it is in it
    line: int
    code: str
    bytes: int


def _places(forecast: Forecast) -> list[_Place]:
    # Lines have whole paths, also if the target is named by a relative one.
    script = forecast.target.partition(":")[0].rpartition("/")[2]
    folders = [
        file.removesuffix(f"/{script}")
        for file in (line.file for line in forecast.lines)
        if file.endswith(f"/{script}")
    ]
    folder = folders[0] if folders else ""
    sums: dict[tuple[str, int], tuple[str, int]] = {}
    for line in forecast.lines:
        file = line.file.removeprefix(f"{folder}/") if folder else line.file
        code, size = sums.get((file, line.line), (line.code.strip(), 0))
        sums[file, line.line] = (code, size + line.bytes)
    return [_Place(file, line, code, size) for (file, line), (code, size) in sums.items()]


def _lines(before: Forecast, after: Forecast) -> list[Change]:
    olds, news = _places(before), _places(after)
    rows: list[Change] = []

    def match(similarity: Callable[[_Place, _Place], float]) -> None:
        """Match the most similar pairs first, and of these the nearest; 0 is no match."""
        pairs = [
            (-similarity(old, new), abs(old.line - new.line), i, j)
            for i, old in enumerate(olds)
            for j, new in enumerate(news)
        ]
        matched_olds, matched_news = set[int](), set[int]()
        for score, _, i, j in sorted(pairs):
            if score and i not in matched_olds and j not in matched_news:
                matched_olds.add(i)
                matched_news.add(j)
                rows.append(_line_change(olds[i], news[j]))
        olds[:] = [old for i, old in enumerate(olds) if i not in matched_olds]
        news[:] = [new for j, new in enumerate(news) if j not in matched_news]

    match(lambda old, new: (old.file, old.code) == (new.file, new.code))
    match(lambda old, new: old.code == new.code and bool(new.code))
    match(lambda old, new: _similarity(old.code, new.code) if old.file == new.file else 0.0)
    rows += [_line_change(old, None) for old in olds]
    rows += [_line_change(None, new) for new in news]
    return rows


def _similarity(old: str, new: str) -> float:
    """The similarity of two lines of code; 0 if neither can be an edit of the other."""
    ratio = difflib.SequenceMatcher(None, old, new).ratio() if old and new else 0.0
    return ratio if ratio >= SIMILAR else 0.0


def _line_change(old: _Place | None, new: _Place | None) -> Change:
    place = new or old
    assert place is not None
    name = f"{place.file}:{place.line}"
    if old and new and old.file != new.file:
        name += f" (was {old.file}:{old.line})"
    elif old and new and old.line != new.line:
        name += f" (was {old.line})"
    return Change(name, old.bytes if old else None, new.bytes if new else None, code=place.code)


def _conclusion(
    before: Forecast,
    after: Forecast,
    parts: tuple[Change, ...],
    lines: tuple[Change, ...],
    cards: tuple[CardChange, ...],
) -> Iterable[str]:
    allocated = Change("peak allocated", before.peak_allocated_bytes, after.peak_allocated_bytes)
    old, new = show_bytes(before.peak_allocated_bytes), show_bytes(after.peak_allocated_bytes)
    if not allocated.difference:
        yield f"The predicted peak is the same: {new} allocated."
    else:
        verb = "grows" if allocated.difference > 0 else "shrinks"
        size = show_bytes(abs(allocated.difference))
        growth = show_growth(allocated.growth or 0.0, signed=False)
        yield f"The predicted peak {verb} by {size} ({growth}): {old} allocated before, {new} after."
        sign = 1 if allocated.difference > 0 else -1
        outside = ("reserved but unused", "NCCL", "context")
        causes = [
            row
            for row in parts
            if row.name not in outside and row.difference * sign > 0.1 * abs(allocated.difference)
        ][:3]
        if causes:
            listed = ", ".join(f"{row.name} {show_signed(row.difference, row.unit)}" for row in causes)
            yield f"By part: {listed}."
        line = next((row for row in lines if row.difference * sign > 0), None)
        if line is not None:
            yield f"The line that changes most: {line.name}, {show_signed(line.difference, line.unit)}."
    for verb, group in (
        ("no longer fits", [c.card for c in cards if c.before and c.after is False]),
        ("may no longer fit (unknown)", [c.card for c in cards if c.before and c.after is None]),
        ("now fits", [c.card for c in cards if c.after]),
    ):
        if group:
            more = len(group) - CARDS_NAMED
            group.sort(
                key=lambda card: card not in (before.card, after.card)
            )  # the card asked for comes first
            yield f"It {verb}: {', '.join(group[:CARDS_NAMED])}{f' and {more} more' if more > 0 else ''}."


def _notes(before: Forecast, after: Forecast) -> Iterable[str]:
    yield from differing_conditions(
        before,
        after,
        ("target", "mode", "size", "variant", "card", "framework", "method", "world_size", "rank"),
    )
    bounds = [
        (f.peak_allocated_bytes, f.peak_allocated_bytes)
        if f.low_bytes is None or f.high_bytes is None
        else (f.low_bytes, f.high_bytes)
        for f in (before, after)
    ]
    is_range = any(low < high for low, high in bounds)
    if is_range and bounds[0][0] <= bounds[1][1] and bounds[1][0] <= bounds[0][1]:
        ranges = " and ".join(f"{show_bytes(low)} to {show_bytes(high)}" for low, high in bounds)
        yield f"The ranges of the two peaks overlap ({ranges}): the real difference may be smaller or absent."
    for name, forecast in (("before", before), ("after", after)):
        for reason in forecast.reasons:
            yield f"The peak {name} may be higher: {reason}"
