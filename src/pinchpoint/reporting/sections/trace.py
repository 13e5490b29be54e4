"""The section of a trace: steps over time, phases, memory, and what is worth changing."""

from __future__ import annotations

from typing import Any

from pinchpoint.core.records import Trace
from pinchpoint.core.units import show_bytes, show_count, show_seconds
from pinchpoint.reporting.answers import answer
from pinchpoint.reporting.axes import Axis, linear_axis, titled_axis
from pinchpoint.reporting.chart import Figure, Unit, bars, hover, layout, path
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    listing,
    meter,
    number_columns,
    panel,
    place,
    prose,
    swatch_label,
    table,
    tag,
)
from pinchpoint.reporting.palette import of_phase
from pinchpoint.reporting.record_reader import number, word
from pinchpoint.reporting.section import Entry, Headline

KIND = "trace"
TITLE = "Profiles"
NOUNS = ("profile", "profiles")
ABOUT = "Real runs: where the time and memory of each step went, and what is worth changing."
ORDER = 50

ROWS_SHOWN = 20


def entry(record: Trace) -> Entry:
    median = record.step_times.get("median_s")
    problems = show_count(len(record.problems), "problem") if record.problems else "no problems"
    tone = "warn" if record.problems else "plain"
    return Entry(
        title=record.target,
        answer=answer(record),
        headline=Headline(show_seconds(median), "per step", problems, tone),
        tags=(record.framework or "no framework", record.device, record.ended, f"{record.steps} steps"),
        tiles=_tiles(record),
        blocks=tuple(_blocks(record)),
    )


def _blocks(record: Trace) -> list[Html | Figure]:
    blocks: list[Html | Figure] = []
    if record.problems:
        blocks.append(_problems(record))
    blocks += step_blocks(record)
    lines = (record.memory or {}).get("lines") or ()
    if lines:
        blocks.append(_memory_lines(lines))
    if record.events:
        blocks.append(_events(record))
    if record.notes:
        blocks.append(panel("Notes", listing(record.notes)))
    return blocks


def step_blocks(record: Trace) -> list[Html | Figure]:
    """The phases, and the times and memory of the steps."""
    blocks: list[Html | Figure] = []
    if record.phases:
        blocks.append(_phases(record))
    if record.timeline:
        blocks.append(_timeline(record))
        if any(number(row, "memory_bytes") is not None for row in record.timeline):
            blocks.append(_memory(record))
    return blocks


def _tiles(record: Trace) -> tuple[Tile, ...]:
    tiles = [Tile("whole run", show_seconds(record.took_s), record.ended)]
    if record.step_times:
        low, high = (show_seconds(record.step_times.get(key)) for key in ("low_s", "high_s"))
        tiles.append(Tile("step", show_seconds(record.step_times.get("median_s")), f"{low} to {high}"))
    if record.first_step_s is not None:
        before = f"after {show_seconds(record.setup_s)} of preparation"
        tiles.append(Tile("first step", show_seconds(record.first_step_s), before))
    memory = record.memory or {}
    if (peak := number(memory, "allocated_bytes")) is not None:
        reserved = number(memory, "reserved_bytes")
        note = f"{show_bytes(reserved)} reserved" if reserved is not None else word(memory, "method")
        tiles.append(Tile("peak allocated", show_bytes(peak), note))
    if record.idle_s is not None:
        tiles.append(Tile("device idle", show_seconds(record.idle_s), "at least"))
    return tuple(tiles)


def _problems(record: Trace) -> Html:
    columns = (
        Column("what", "prose"),
        Column("line", "code"),
        *number_columns("cost", "share"),
        Column("hint", "prose"),
    )
    rows = [
        (
            prose(problem.what),
            place(problem.file, problem.line) if problem.file else "",
            show_seconds(problem.cost_s) if problem.cost_s is not None else show_bytes(problem.bytes),
            "-" if problem.share is None else f"{problem.share:.1%}",
            prose(problem.hint),
        )
        for problem in record.problems[:ROWS_SHOWN]
    ]
    return panel("Worth changing", table(columns, rows), note="Ranked by the time that each one cost.")


def _phases(record: Trace) -> Html:
    steps = max(record.steps - 1, 1)
    has_device = any(phase.device_s is not None for phase in record.phases)
    rows = [
        (
            swatch_label(of_phase(phase.name), phase.name),
            show_seconds(phase.host_s / steps),
            *(
                [show_seconds(None if phase.device_s is None else phase.device_s / steps)]
                if has_device
                else []
            ),
            f"{phase.share:.1%}",
            meter(phase.share, of_phase(phase.name)),
        )
        for phase in record.phases
    ]
    numbers = ("host per step", *(["device per step"] if has_device else []), "share")
    columns = (Column("phase"), *number_columns(*numbers), Column(""))
    return panel("Phases", table(columns, rows), note="Steps after the first.", half=True)


def _timeline(record: Trace) -> Figure:
    rows = record.timeline
    numbers = [round(number(row, "step") or 0) + 1 for row in rows]
    whole = [number(row, "host_s") or 0.0 for row in rows]
    phases = [row.get("phases") or {} for row in rows]
    data = []
    for name in dict.fromkeys(name for row in phases for name in row):
        values = [number(row, name) or 0.0 for row in phases]
        texts = [
            hover(f"step {step}", (name, show_seconds(value)), ("whole", show_seconds(total)))
            for step, value, total in zip(numbers, values, whole, strict=True)
        ]
        heights = [value * 1e3 for value in values]
        data.append(bars(name, numbers, heights, role=of_phase(name), texts=texts))
    later = sorted(value * 1e3 for value in whole[1:] or whole)
    # The first step may take a thousand times as long; it would hide the others.
    top = min(later[-1] * 1.1, later[len(later) // 2] * 6) or 1.0
    axes = layout(
        x=_step_axis(len(record.timeline)),
        y=linear_axis("host time (ms)", range=[0, top]),
        barmode="stack",
        bargap=0.05,
    )
    note = "Host time of each step by phase. Steps that take far longer than most are cut off at the top."
    return Figure("Steps", tuple(data), axes, note=note)


def _step_axis(steps: int) -> Axis:
    """Return an axis of steps, with whole numbers as ticks."""
    return titled_axis("step", showgrid=False, tickformat="d", **({"dtick": 1} if steps <= 12 else {}))


def _memory(record: Trace) -> Figure:
    rows = [
        (round(number(row, "step") or 0) + 1, size)
        for row in record.timeline
        if (size := number(row, "memory_bytes")) is not None
    ]
    unit = Unit.of([size for _, size in rows])
    texts = [hover(f"step {step}", ("memory", show_bytes(size))) for step, size in rows]
    line = path(
        [step for step, _ in rows],
        [unit(size) for _, size in rows],
        role="s1",
        hoverinfo="text",
        hovertext=texts,
    )
    axes = layout(x=_step_axis(len(record.timeline)), y=linear_axis(f"memory ({unit.name})"))
    method = word(record.memory or {}, "per_step_is") or "memory at the end of each step"
    note = f"{method[:1].upper()}{method[1:]}."
    return Figure("Memory at the end of each step", (line,), axes, note=note, half=True)


def _memory_lines(lines: Any) -> Html:
    columns = (Column("line", "code"), *number_columns("bytes"), Column("phase"), Column("code", "code"))
    rows = [
        (
            place(word(line, "file"), int(number(line, "line") or 0)),
            show_bytes(number(line, "bytes")),
            word(line, "phase"),
            tag("code", word(line, "code")),
        )
        for line in lines[:ROWS_SHOWN]
    ]
    return panel("Memory at the peak by line", table(columns, rows))


def _events(record: Trace) -> Html:
    columns = (
        Column("what"),
        Column("line", "code"),
        *number_columns("count", "steps", "time", "longest"),
        Column("code", "code"),
    )
    rows = [
        (
            event.what,
            place(event.file, event.line) if event.file else "",
            f"{event.count:,}",
            f"{event.steps:,}",
            show_seconds(event.host_s),
            show_seconds(event.longest_s),
            tag("code", event.code),
        )
        for event in record.events[:ROWS_SHOWN]
    ]
    more = len(record.events) - ROWS_SHOWN
    note = f"{more} more lines are in the record." if more > 0 else ""
    return panel("Waits, copies and rebuilt objects by line", table(columns, rows), note=note)
