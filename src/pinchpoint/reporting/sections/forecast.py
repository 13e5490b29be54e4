"""A forecast: the predicted peak, what it is made of, which lines hold it and which cards it fits."""

from __future__ import annotations

from pinchpoint.core.records import BREAKDOWN, Forecast, Line
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting import palette
from pinchpoint.reporting.axes import exact, labelled, linear, titled, words
from pinchpoint.reporting.chart import Figure, Trace, Unit, bars, hover, layout, path, ranked
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    Tone,
    badge,
    chips,
    column,
    join,
    keyed,
    listing,
    meter,
    numbers,
    panel,
    place,
    table,
    tag,
)
from pinchpoint.reporting.record_reader import count, number, share, word
from pinchpoint.reporting.section import Entry, Headline

KIND = "forecast"
TITLE = "Forecasts"
ABOUT = "The peak memory of a step, predicted without the card."
ORDER = 10

LINES_SHOWN = 20
MODULES_SHOWN = 16
TIMELINE_POINTS = 700


def entry(record: Forecast) -> Entry:
    size = f"size {exact(record.size)}" if record.size is not None else "script"
    return Entry(
        title=record.target,
        headline=Headline(
            show_bytes(record.total_bytes),
            f"predicted on {record.card}",
            f"{record.mode}, {size}",
            _tone(record),
        ),
        tags=(record.mode, size, record.variant or "", record.framework, record.method),
        tiles=_tiles(record),
        blocks=tuple(_blocks(record)),
    )


def _blocks(record: Forecast) -> list[Html | Figure]:
    beside = [_cards(record)]
    if record.measured:
        beside.append(_measured(record, record.measured))
    if record.notes:
        beside.append(panel("Notes", listing(record.notes)))
    blocks: list[Html | Figure] = [_composition(record), _breakdown(record), column(*beside)]
    if record.timeline:
        blocks.append(_timeline(record))
    if record.lines:
        blocks.append(_lines(record))
    if any(number(module, "bytes") for module in record.modules):
        blocks.append(_modules(record))
    if record.levers:
        blocks.append(_levers(record))
    return blocks


def _tone(record: Forecast) -> Tone:
    """Good or bad only when the card it was predicted for is among those it was held against."""
    if record.card in record.fits:
        return "good" if record.fits[record.card] else "bad"
    return "plain"


def _tiles(record: Forecast) -> tuple[Tile, ...]:
    tiles = [
        Tile(
            "total on the card",
            show_bytes(record.total_bytes),
            f"as the driver shows it on {record.card}",
            _tone(record),
        ),
        Tile("peak allocated", show_bytes(record.peak_allocated_bytes), "bytes of live tensors"),
    ]
    if record.peak_reserved_bytes is not None:
        tiles.append(
            Tile("peak reserved", show_bytes(record.peak_reserved_bytes), "held by the caching allocator")
        )
    if record.low_bytes is not None and record.high_bytes is not None:
        between = _between(record.low_bytes, record.high_bytes)
        why = (
            "as libraries choose and data counts"
            if record.framework == "torch"
            else "with all fused, with nothing fused"
        )
        tiles.append(Tile("allocated, between", between, why, "warn"))
    if record.fits:
        fitting = sum(record.fits.values())
        note = f"with a margin of {show_bytes(record.margin_bytes)}"
        tiles.append(
            Tile("fits", f"{fitting} of {len(record.fits)} cards", note, "plain" if fitting else "bad")
        )
    if record.measured and (real := record.measured.get("allocated_bytes")):
        error = record.peak_allocated_bytes / real - 1
        tone: Tone = "good" if abs(error) <= 0.05 else "bad"
        tiles.append(Tile("error of allocated", f"{error:+.2%}", f"measured {show_bytes(real)}", tone))
    if record.took_s:
        tiles.append(Tile("predicted in", show_seconds(record.took_s), _steps(record)))
    return tuple(tiles)


def _steps(record: Forecast) -> str:
    return "1 step" if record.steps == 1 else f"{record.steps} steps"


def _between(low: int, high: int) -> str:
    """`2.76 to 3.30 GiB`: the unit once where both share it."""
    first, last = show_bytes(low), show_bytes(high)
    return f"{first.split()[0] if first.split()[1] == last.split()[1] else first} to {last}"


def _stack(record: Forecast) -> list[tuple[str, str, int]]:
    """(label, role, bytes) from weights to the driver's total."""
    names = [*BREAKDOWN, *(name for name in record.breakdown if name not in BREAKDOWN)]
    stack = [
        (name, palette.of_source(name), record.breakdown[name])
        for name in names
        if record.breakdown.get(name)
    ]
    reserved = (
        record.peak_allocated_bytes if record.peak_reserved_bytes is None else record.peak_reserved_bytes
    )
    if reserved > record.peak_allocated_bytes:
        stack.append(
            ("reserved, not in use", palette.of_source("cached"), reserved - record.peak_allocated_bytes)
        )
    if record.context_bytes:
        stack.append(("context", palette.of_source("context"), record.context_bytes))
    return stack


def _composition(record: Forecast) -> Figure:
    unit = Unit.of([record.total_bytes])
    data = [_part(label, role, size, 0, unit, record.total_bytes) for label, role, size in _stack(record)]
    rows = ["predicted"]
    if record.measured:
        rows.append("measured")
        data += _measured_parts(record.measured, unit)
    x = linear(f"memory at the peak ({unit.name})")
    axes = layout(x=x, y=labelled(rows, autorange="reversed"), barmode="stack", bargap=0.25)
    note = "At the instant of the peak, from weights to what the driver shows. Colours as in the breakdown below."
    return Figure("What the peak is made of", tuple(data), axes, height=82 + 52 * len(rows), note=note)


def _part(label: str, role: str, size: int, row: int, unit: Unit, whole: int) -> Trace:
    facts = (
        ("bytes", f"{size:,}"),
        ("that is", show_bytes(size)),
        ("of the total", f"{share(size, whole):.1%}"),
    )
    return bars("", [unit(size)], [row], role=role, texts=[hover(label, *facts)], orientation="h")


def _measured_parts(measured: dict[str, int], unit: Unit) -> list[Trace]:
    """What a card showed has no sources, only levels: allocated, then reserved, then the driver's total."""
    levels = (
        ("allocated", "s8", "allocated_bytes"),
        ("reserved, not in use", "idle", "reserved_bytes"),
        ("context", "idle-2", "total_bytes"),
    )
    parts, below = [], 0
    for label, role, key in levels:
        if key in measured:
            parts.append(
                _part(
                    f"measured: {label}",
                    role,
                    max(0, measured[key] - below),
                    1,
                    unit,
                    measured.get("total_bytes", 0),
                )
            )
            below = measured[key]
    return parts


def _breakdown(record: Forecast) -> Html:
    rows: list[tuple[object, ...]] = [
        (keyed(role, label), show_bytes(size), f"{size:,}", f"{share(size, record.total_bytes):.1%}")
        for label, role, size in _stack(record)
    ]
    rows.append(
        (
            tag("strong", "total"),
            tag("strong", show_bytes(record.total_bytes)),
            f"{record.total_bytes:,}",
            "100.0%",
        )
    )
    columns = (Column("part"), *numbers("size", "bytes", "share"))
    return panel("Breakdown", table(columns, rows), half=True)


def _cards(record: Forecast) -> Html:
    if not record.fits:
        return panel("Cards", tag("p", "No cards were asked about.", class_="quiet"))
    marks: list[tuple[object, Tone]] = [
        (f"{'✓' if fits else '✗'} {name}", "good" if fits else "bad") for name, fits in record.fits.items()
    ]
    note = f"A card counts as fitting when {show_bytes(record.margin_bytes)} stay free beside the total."
    return panel("Cards", chips(marks), note=note)


def _measured(record: Forecast, measured: dict[str, int]) -> Html:
    pairs = (
        ("peak allocated", record.peak_allocated_bytes, measured.get("allocated_bytes")),
        ("peak reserved", record.peak_reserved_bytes, measured.get("reserved_bytes")),
        ("total", record.total_bytes, measured.get("total_bytes")),
    )
    rows = [
        (label, show_bytes(said), show_bytes(real), f"{said / real - 1:+.3%}")
        for label, said, real in pairs
        if said is not None and real
    ]
    columns = (Column("peak"), *numbers("predicted", "measured", "error"))
    return panel(
        "Predicted against measured", table(columns, rows), note="Error is predicted / measured - 1."
    )


def _timeline(record: Forecast) -> Figure:
    events = thin(record.timeline, TIMELINE_POINTS)
    at, top, during = max(events, key=lambda event: event[1])
    unit = Unit.of([top])
    x = [event for event, _, _ in events]
    data: list[Trace] = []
    for phase in dict.fromkeys(phase for _, _, phase in events):
        # An area of its own per phase, zero elsewhere, so that the key can hide a phase.
        role, y = palette.of_phase(phase), [unit(size) if p == phase else 0 for _, size, p in events]
        area = {
            "name": phase,
            "meta": {"role": role, "glyph": "■"},
            "fill": "tozeroy",
            "fillcolor": f"@{role}/0.55",
        }
        data.append(path(x, y, role=role, width=0, **area))
        data[-1]["line"]["shape"] = "hv"
    texts = [
        hover(show_bytes(size), ("event", f"{event:,}"), ("phase", phase)) for event, size, phase in events
    ]
    data.append(
        path(
            x, [unit(size) for _, size, _ in events], role="ink", width=1.2, hoverinfo="text", hovertext=texts
        )
    )
    data[-1]["line"]["shape"] = "hv"
    arrow = {"showarrow": True, "arrowhead": 0, "arrowcolor": "@ink", "ax": 0, "ay": -20}
    label = {
        "text": words(f"peak: {show_bytes(top)} in {during}"),
        "font": {"color": "@ink", "size": 12},
        "bgcolor": "@surface/0.8",
    }
    axes = layout(
        x=titled("allocation event", showgrid=False, zeroline=False),
        y=linear(f"allocated ({unit.name})", range=[0, unit(top) * 1.16 or 1]),
        annotations=[{"x": at, "y": unit(top), **arrow, **label}],
        hovermode="x",
    )
    note = f"Allocated bytes over {_steps(record)}, coloured by phase."
    return Figure("Memory through the steps", tuple(data), axes, note=note)


def thin(events: tuple[tuple[int, int, str], ...], most: int) -> list[tuple[int, int, str]]:
    """At most about `most` events: of each stretch the lowest and the highest stay, so the peak does."""
    if len(events) <= most:
        return list(events)
    step = -(-2 * len(events) // most)
    kept: set[int] = {0, len(events) - 1}
    for start in range(0, len(events), step):
        stretch = range(start, min(start + step, len(events)))
        kept |= {max(stretch, key=lambda i: events[i][1]), min(stretch, key=lambda i: events[i][1])}
    return [events[i] for i in sorted(kept)]


def _lines(record: Forecast) -> Html:
    lines = sorted(record.lines, key=lambda line: -line.bytes)
    shown, rest = lines[:LINES_SHOWN], lines[LINES_SHOWN:]

    def row(line: Line) -> tuple[object, ...]:
        source = tag("code", line.code.strip()) if line.code else tag("span", "-", class_="quiet")
        part = join(
            [
                meter(share(line.bytes, shown[0].bytes)),
                f"{share(line.bytes, record.peak_allocated_bytes):.1%}",
            ]
        )
        return (
            place(line.file, line.line),
            source,
            keyed(palette.of_phase(line.phase), line.phase),
            show_bytes(line.bytes),
            part,
        )

    columns = (
        Column("where", "code"),
        Column("code", "code"),
        Column("phase"),
        Column("bytes", "number"),
        Column("share of allocated"),
    )
    note = "What each source line holds at the peak."
    if rest:
        note += f" {len(rest)} more lines hold {show_bytes(sum(line.bytes for line in rest))} together."
    return panel("Lines at the peak", table(columns, [row(line) for line in shown]), note=note)


def _modules(record: Forecast) -> Figure:
    pairs = [(word(module, "name") or "(root)", count(module, "bytes") or 0) for module in record.modules]
    pairs.sort(key=lambda pair: -pair[1])
    rows = [
        (
            name,
            "s1",
            size,
            hover(
                name,
                ("bytes", f"{size:,}"),
                ("of allocated", f"{share(size, record.peak_allocated_bytes):.1%}"),
            ),
        )
        for name, size in pairs[:MODULES_SHOWN]
    ]
    left = len(pairs) - len(rows)
    note = "The module tree's share of the peak." + (f" {left} smaller ones are left out." if left else "")
    return ranked("Modules at the peak", rows, axis="held at the peak", note=note)


def _levers(record: Forecast) -> Html:
    levers = sorted(record.levers, key=lambda lever: -lever.saves_bytes)
    rows = []
    for lever in levers:
        part = join(
            [
                meter(share(lever.saves_bytes, levers[0].saves_bytes), "good"),
                f"{share(lever.saves_bytes, record.total_bytes):.0%}",
            ]
        )
        rows.append((badge(lever.name, "info"), show_bytes(lever.saves_bytes), part, lever.how))
    columns = (Column("lever"), Column("saves", "number"), Column("of the total"), Column("how"))
    return panel("Levers", table(columns, rows), note="What would lower the peak, by prediction.")
