"""The section of a check: what to change, ranked, with fixes, and the times before and after."""

from __future__ import annotations

from pinchpoint.core.records import Advice, Check, Gain
from pinchpoint.core.units import show_bytes, show_count, show_seconds
from pinchpoint.reporting.chart import Figure
from pinchpoint.reporting.html import Column, Html, Tile, listing, number_columns, panel, place, table, tag
from pinchpoint.reporting.section import Entry, Headline

KIND = "check"
TITLE = "Checks"
ABOUT = "What to change in a script, ranked by what it costs."
ORDER = 5


def entry(record: Check) -> Entry:
    count = len(record.advice)
    measured = sum(advice.cost_s is not None for advice in record.advice)
    tags = (
        *((record.trace.framework or "no framework", record.trace.device) if record.trace else ()),
        show_count(len(record.files), "file"),
    )
    return Entry(
        title=record.target,
        headline=Headline(
            f"{count:,}",
            "to change" if count else "nothing to change",
            f"{measured:,} with a measured cost" if count else "",
            "warn" if count else "plain",
        ),
        tags=tags,
        tiles=_tiles(record),
        blocks=tuple(_blocks(record)),
    )


def _tiles(record: Check) -> tuple[Tile, ...]:
    tiles = []
    if record.trace is not None:
        median = record.trace.step_times.get("median_s")
        tiles.append(Tile("step", show_seconds(median), f"{record.trace.steps} steps, {record.trace.ended}"))
    if record.forecast is not None:
        tiles.append(
            Tile("predicted peak", show_bytes(record.forecast.peak_allocated_bytes), record.forecast.card)
        )
    if record.gain is not None and record.gain.speedup is not None:
        bounds = f"{record.gain.speedup_low:.2f} to {record.gain.speedup_high:.2f}"
        tiles.append(Tile("speed-up", f"{record.gain.speedup:.2f}", f"{record.gain.verdict}, {bounds}"))
    return tuple(tiles)


def _blocks(record: Check) -> list[Html | Figure]:
    blocks: list[Html | Figure] = []
    if record.error:
        blocks.append(panel("The script failed", listing((record.error,))))
    if record.advice:
        blocks.append(_advice(record.advice))
    fixes = [advice for advice in record.advice if advice.diff]
    if fixes:
        blocks.append(_fixes(fixes))
    if record.gain is not None:
        blocks.append(_gain(record.gain))
    if record.notes:
        blocks.append(panel("Notes", listing(record.notes)))
    return blocks


def _advice(advice: tuple[Advice, ...]) -> Html:
    columns = (
        Column("rule"),
        Column("what"),
        Column("line", "code"),
        *number_columns("per step", "share", "bytes"),
        Column("seen"),
        Column("hint"),
    )
    rows = [
        (
            f"{each.rule} {each.name}".strip(),
            each.what,
            place(each.file, each.line) if each.file else "",
            show_seconds(each.cost_s),
            "-" if each.share is None else f"{each.share:.1%}",
            show_bytes(each.bytes),
            each.seen,
            each.hint,
        )
        for each in advice
    ]
    note = "Ranked by measured cost, then by bytes. What has no measured cost comes last."
    return panel("What to change", table(columns, rows), note=note)


def _fixes(fixes: list[Advice]) -> Html:
    columns = (Column("rule"), Column("safe"), Column("fix", "code"))
    rows = [
        (f"{each.rule} {each.name}", "yes" if each.is_safe else "review", tag("pre", each.diff))
        for each in fixes
    ]
    return panel("Fixes", table(columns, rows), note="--apply makes the safe ones.")


def _gain(gain: Gain) -> Html:
    rows = [
        (f"{number}", show_seconds(before), show_seconds(after), f"{before / after:.3f}" if after else "-")
        for number, (before, after) in enumerate(zip(gain.before_s, gain.after_s, strict=False), 1)
    ]
    columns = (Column("pair"), *number_columns("before", "after", "speed-up"))
    body = table(columns, rows) if rows else listing((gain.reason,))
    return panel("Before and after", body, note=f"{gain.verdict}: {gain.reason}")
