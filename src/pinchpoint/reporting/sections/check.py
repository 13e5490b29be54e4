"""The section of a check: what to change, ranked, with fixes, and the times before and after."""

from __future__ import annotations

from pinchpoint.core.records import Advice, Check, Gain
from pinchpoint.core.units import show_bytes, show_count, show_seconds
from pinchpoint.reporting.answers import answer
from pinchpoint.reporting.chart import Figure
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    folded_details,
    listing,
    number_columns,
    panel,
    place,
    prose,
    table,
    tag,
)
from pinchpoint.reporting.section import Entry, Headline
from pinchpoint.reporting.sections.trace import step_blocks

KIND = "check"
TITLE = "Checks"
NOUNS = ("check", "checks")
ABOUT = "What to change in a script, ranked by what it costs."
ORDER = 5

_SEEN = {"counted": "seen, cost unknown", "ran": "the line ran", "did not run": "the line did not run"}
_TITLES = {"cost": "Measured costs", "correctness": "Correctness", "source": "Without a measured cost"}


def entry(record: Check) -> Entry:
    count = len(record.advice)
    measured = sum(advice.group == "cost" for advice in record.advice)
    tags = (
        *((record.trace.framework or "no framework", record.trace.device) if record.trace else ()),
        show_count(len(record.files), "file"),
    )
    return Entry(
        title=record.target,
        answer=answer(record),
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
    for group, title in _TITLES.items():
        advice = [each for each in record.advice if each.group == group]
        if advice:
            blocks.append(_advice(title, advice, has_cost=group == "cost"))
    fixes = [advice for advice in record.advice if advice.diff]
    if fixes:
        blocks.append(_fixes(fixes))
    if record.gain is not None:
        blocks.append(_gain(record.gain))
    if record.trace is not None:
        blocks += step_blocks(record.trace)
    if record.notes:
        blocks.append(panel("Notes", listing(record.notes)))
    return blocks


def _advice(title: str, advice: list[Advice], *, has_cost: bool) -> Html:
    costs = number_columns("per step", "share", "bytes") if has_cost else (Column("in the run"),)
    columns = (
        Column("rule"),
        Column("what", "prose"),
        Column("line", "code"),
        *costs,
        Column("hint", "prose"),
    )
    rows = []
    for each in advice:
        share = "-" if each.share is None else f"{each.share:.1%}"
        numbers = (show_seconds(each.cost_s), share, show_bytes(each.bytes))
        where = place(each.file, each.line) if each.file else ""
        name = f"{each.rule} {each.name}".strip()
        rows.append(
            (
                name,
                prose(each.what),
                where,
                *(numbers if has_cost else (_SEEN.get(each.seen, each.seen),)),
                prose(each.hint),
            )
        )
    return panel(title, table(columns, rows), note="Most expensive first." if has_cost else "")


def _fixes(fixes: list[Advice]) -> Html:
    body = [
        folded_details(
            f"{each.rule} {each.name} in line {each.line}{'' if each.is_safe else ', may change results'}",
            tag("pre", each.diff),
        )
        for each in fixes
    ]
    return panel("Fixes", *body, note="--apply makes the safe ones.")


def _gain(gain: Gain) -> Html:
    rows = [
        (f"{number}", show_seconds(before), show_seconds(after), f"{before / after:.3f}" if after else "-")
        for number, (before, after) in enumerate(zip(gain.before_s, gain.after_s, strict=False), 1)
    ]
    columns = (Column("pair"), *number_columns("before", "after", "speed-up"))
    body = table(columns, rows) if rows else listing((gain.reason,))
    return panel("Before and after", body, note=f"{gain.verdict}: {gain.reason} {gain.note}".strip())
