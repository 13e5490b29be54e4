"""The section of a bench: for each case, the times and peaks of all contenders beside the baseline."""

from __future__ import annotations

from typing import Any

from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting.answers import Answer
from pinchpoint.reporting.axes import exact_size, labelled_axis, log_time_axis
from pinchpoint.reporting.chart import Figure, bar_chart, hover, layout, marks
from pinchpoint.reporting.html import Column, Html, Tile, badge, listing, number_columns, panel, table
from pinchpoint.reporting.other_records import BenchFile
from pinchpoint.reporting.record_reader import count, number, word
from pinchpoint.reporting.section import Entry, Headline

KIND = "bench"
TITLE = "Benchmarks"
NOUNS = ("benchmark", "benchmarks")
ABOUT = (
    "Each system's own comparisons: times are medians with 95 % intervals, and a ratio above 1 means faster"
    " than the baseline."
)
ORDER = 50

Values = dict[str, Any]
_COLOURS = {"baseline": "idle-2", "report": "idle-2", "variant": "s1", "peer": "s2"}


def entry(record: BenchFile) -> Entry:
    fastest = [(one, row) for one in record.comparisons if (row := _fastest(one)) is not None]
    most = max(fastest, key=lambda pair: number(pair[1], "ratio") or 0.0, default=None)
    blocks: list[Html | Figure] = []
    for one in record.comparisons:
        blocks += _blocks(one)
    return Entry(
        title=record.system,
        headline=Headline(f"{len(record.comparisons)}", "cases", f"on {record.device}")
        if most is None
        else Headline(
            _ratio(most[1]), f"{word(most[0], 'case')}: {word(most[1], 'name')}", "over the baseline"
        ),
        answer=_answer(record, fastest),
        tags=(record.device, f"{record.sizes} sizes", f"{len(record.comparisons)} cases"),
        tiles=tuple(
            Tile(
                word(one, "case"),
                _ratio(row),
                f"{word(row, 'name')}: {_time(row)}, baseline {_time(one['rows'][0])}",
                "good" if (number(row, "ratio_low") or 0.0) > 1 else "plain",
            )
            for one, row in fastest
        ),
        blocks=tuple(blocks),
    )


def _answer(record: BenchFile, fastest: list[tuple[Values, Values]]) -> Answer:
    failures = [
        f"{word(one, 'case')} failed: {word(one, 'failure')}"
        for one in record.comparisons
        if one.get("failure")
    ]
    unequal = [
        f"{word(one, 'case')}: {word(row, 'name')} does not compute the same as the baseline."
        for one in record.comparisons
        for row in one["rows"]
        if _equal(row) is False
    ]
    text = "; ".join(
        f"{word(one, 'case')}: {word(row, 'name')} is {_ratio(row)} as fast as {word(one['rows'][0], 'name')}"
        for one, row in fastest
    )
    sentence = f"The fastest variant of each case: {text}." if text else "No variant was timed."
    return Answer("bad" if failures else "warn" if unequal else "plain", sentence, (*failures, *unequal))


def _fastest(one: Values) -> Values | None:
    """Return the fastest variant that computes the same; None if the case has none."""
    rows = [
        r
        for r in one["rows"]
        if word(r, "role") == "variant" and number(r, "ratio") and _equal(r) is not False
    ]
    return max(rows, key=lambda row: number(row, "ratio") or 0.0, default=None)


def _equal(row: Values) -> bool | None:
    agreement = row.get("agreement")
    equal = agreement.get("equal") if isinstance(agreement, dict) else None
    return equal if isinstance(equal, bool) else None


def _blocks(one: Values) -> list[Html | Figure]:
    timed = [row for row in one["rows"] if number(row, "seconds")]
    peaks = [row for row in one["rows"] if number(row, "peak_allocated_bytes")]
    blocks: list[Html | Figure] = []
    if timed:
        blocks.append(_times(one, timed))
    if peaks:
        blocks.append(
            bar_chart(
                f"Peaks of {word(one, 'case')}",
                [
                    (
                        word(row, "name"),
                        _colour(row),
                        count(row, "peak_allocated_bytes") or 0,
                        hover(word(row, "name"), ("peak", f"{count(row, 'peak_allocated_bytes'):,} B")),
                    )
                    for row in peaks
                ],
                axis="peak",
                note="Allocated, measured in a separate run.",
                half=True,
            )
        )
    return [*blocks, _table(one)]


def _times(one: Values, rows: list[Values]) -> Figure:
    traces = []
    for place, row in enumerate(rows):
        seconds = number(row, "seconds") or 0.0
        low, high = number(row, "seconds_low"), number(row, "seconds_high")
        facts = (
            ("95 %", f"{show_seconds(low)} to {show_seconds(high)}"),
            ("ratio", _ratio(row)),
            ("runs", word(row, "runs")),
        )
        trace = marks(
            "",
            [seconds],
            [place],
            role=_colour(row),
            texts=[hover(word(row, "name"), ("time", _time(row)), *facts)],
        )
        if low is not None and high is not None:
            ends = {"array": [high - seconds], "arrayminus": [seconds - low]}
            trace["error_x"] = {
                "type": "data",
                "symmetric": False,
                **ends,
                "color": f"@{_colour(row)}",
                "thickness": 3,
                "width": 7,
            }
        traces.append(trace)
    every = [
        v for row in rows for key in ("seconds", "seconds_low", "seconds_high") if (v := number(row, key))
    ]
    labels = [word(row, "name") for row in rows]
    axes = layout(
        x=log_time_axis(every, "time, log scale"),
        y=labelled_axis(labels, showgrid=True, range=[len(rows) - 0.4, -0.6]),
    )
    return Figure(
        f"Times of {word(one, 'case')}",
        tuple(traces),
        axes,
        height=86 + 26 * len(rows),
        note="Medians with 95 % intervals. Grey: the baseline and other code of the optimisation report.",
        half=True,
    )


def _table(one: Values) -> Html:
    columns = (
        Column("contender", "code"),
        Column("role"),
        *number_columns("time", "95 %", "ratio", "peak"),
        Column("result"),
        Column("note"),
    )
    size = count(one, "size")
    what = word(one, "title") + (f", {exact_size(size)} {word(one, 'axis')}" if size else "")
    notes = one.get("notes")
    parts: list[object] = [table(columns, [_cells(row) for row in one["rows"]])]
    if isinstance(notes, (list, tuple)) and notes:
        parts.append(listing([str(note) for note in notes]))
    return panel(f"{word(one, 'case')}: {what}", *parts, note=word(one, "claim"))


def _cells(row: Values) -> tuple[object, ...]:
    low, high, equal = number(row, "seconds_low"), number(row, "seconds_high"), _equal(row)
    interval = f"{show_seconds(low)} to {show_seconds(high)}" if low is not None and high is not None else "-"
    peak = count(row, "peak_allocated_bytes")
    result = "-" if equal is None else badge("equal", "good") if equal else badge("not equal", "bad")
    state = word(row, "state")
    note = word(row, "note") if state in ("", "ok") else f"{state}: {word(row, 'reason')}".rstrip(": ")
    peak_text = "-" if peak is None else show_bytes(peak)
    return word(row, "name"), word(row, "role"), _time(row), interval, _ratio(row), peak_text, result, note


def _colour(row: Values) -> str:
    return _COLOURS.get(word(row, "role"), "s3")


def _time(row: Values) -> str:
    return show_seconds(number(row, "seconds"))


def _ratio(row: Values) -> str:
    ratio = number(row, "ratio")
    if ratio is None:
        return "-"
    if 0 < ratio < 0.01:
        return f"1/{1 / ratio:,.0f}x"
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"
