"""The section of a forecast: the predicted peak, its breakdown, the source lines behind it, and the cards."""

from __future__ import annotations

from pinchpoint.core.records import Forecast, Line
from pinchpoint.core.units import common_root, show_bytes, show_seconds
from pinchpoint.reporting import palette
from pinchpoint.reporting.answers import answer
from pinchpoint.reporting.axes import escape_label, exact_size, linear_axis, titled_axis
from pinchpoint.reporting.chart import Figure, Trace, Unit, bar_chart, hover, layout, path
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    Tone,
    badge,
    chips,
    column,
    folded_details,
    join,
    listing,
    meter,
    number_columns,
    panel,
    place,
    swatch_label,
    table,
    tag,
)
from pinchpoint.reporting.modules import merged_modules
from pinchpoint.reporting.record_reader import number, share
from pinchpoint.reporting.section import Entry, Headline
from pinchpoint.reporting.sections._composition import composition, stack

KIND = "forecast"
TITLE = "Forecasts"
NOUNS = ("forecast", "forecasts")
ABOUT = "The peak memory of a step, predicted without a GPU."
ORDER = 10

LINES_SHOWN = 20
MODULES_SHOWN = 16
CARDS_SHOWN = 12
TIMELINE_POINTS = 700


def entry(record: Forecast) -> Entry:
    size = f"size {exact_size(record.size)}" if record.size is not None else "script"
    return Entry(
        title=record.target,
        answer=answer(record),
        headline=Headline(
            show_bytes(record.total_bytes),
            f"predicted for {record.card}",
            f"{record.mode}, {size}",
            _tone(record),
        ),
        tags=(record.mode, size, record.variant or "", record.framework, record.method),
        tiles=_tiles(record),
        blocks=tuple(_blocks(record)),
    )


def _blocks(record: Forecast) -> list[Html | Figure]:
    blocks: list[Html | Figure] = []
    if record.reasons:
        blocks.append(panel("Why the peak may be higher", listing(record.reasons)))
    if record.timeline:
        blocks.append(_timeline(record))
    if record.levers:
        blocks.append(_levers(record))
    if record.lines:
        blocks.append(_lines(record))
    if any(number(module, "bytes") for module in record.modules):
        blocks.append(_modules(record))
    beside = [_cards(record)]
    if record.measured:
        beside.append(_comparison(record, record.measured))
    if record.notes:
        beside.append(panel("Notes", listing(record.notes)))
    blocks += [composition(record), _breakdown(record), column(*beside)]
    return blocks


def _tone(record: Forecast) -> Tone:
    """Return good or bad only if the forecast says whether it fits the card it was predicted for."""
    if record.card in record.fits:
        fits = record.fits[record.card]
        return "warn" if fits is None else ("good" if fits else "bad")
    return "plain"


def _tiles(record: Forecast) -> tuple[Tile, ...]:
    tiles = [
        Tile(
            "total on the card",
            show_bytes(record.total_bytes),
            f"as the driver would show it on {record.card}",
            _tone(record),
        ),
        Tile("peak allocated", show_bytes(record.peak_allocated_bytes), "by live tensors"),
    ]
    if record.peak_reserved_bytes is not None:
        tiles.append(
            Tile("peak reserved", show_bytes(record.peak_reserved_bytes), "by the caching allocator")
        )
    if record.low_bytes is not None and record.high_bytes is not None:
        between = _between(record.low_bytes, record.high_bytes)
        why = (
            "depending on library choices and data"
            if record.framework == "torch"
            else "with everything fused and nothing fused"
        )
        tiles.append(Tile("range of allocated", between, why, "warn"))
    if record.fits:
        fitting = sum(yes is True for yes in record.fits.values())
        unknown = sum(yes is None for yes in record.fits.values())
        note = f"with a margin of {show_bytes(record.margin_bytes)}" + (
            f"; unknown for {unknown}" if unknown else ""
        )
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
    """Format `2.76 to 3.30 GiB`, with the unit once if both share it."""
    first, last = show_bytes(low), show_bytes(high)
    return f"{first.split()[0] if first.split()[1] == last.split()[1] else first} to {last}"


def _breakdown(record: Forecast) -> Html:
    rows: list[tuple[object, ...]] = [
        (swatch_label(role, label), show_bytes(size), f"{size:,}", f"{share(size, record.total_bytes):.1%}")
        for label, role, size in stack(record)
    ]
    rows.append(
        (
            tag("strong", "total"),
            tag("strong", show_bytes(record.total_bytes)),
            f"{record.total_bytes:,}",
            "100.0%",
        )
    )
    columns = (Column("part"), *number_columns("size", "bytes", "share"))
    return panel("Breakdown", table(columns, rows), half=True)


def _cards(record: Forecast) -> Html:
    if not record.fits:
        return panel("Cards", tag("p", "The forecast was not compared with any card.", class_="quiet"))
    signs: dict[bool | None, tuple[str, Tone]] = {
        True: ("✓", "good"),
        False: ("✗", "bad"),
        None: ("?", "warn"),
    }
    marks: dict[str, tuple[object, Tone]] = {
        name: (f"{signs[fits][0]} {name}", signs[fits][1]) for name, fits in record.fits.items()
    }
    shown = _nearest_cards(record)
    body = [chips(marks[name] for name in shown)]
    if len(shown) < len(marks):
        body.append(folded_details(f"all {len(marks)} cards, by memory", chips(marks.values())))
    note = f"A forecast fits a card if the total leaves {show_bytes(record.margin_bytes)} free."
    if None in record.fits.values():
        note += " A question mark: it fits by what was predicted, but the peak may be higher."
    return panel("Cards", *body, note=note)


def _nearest_cards(record: Forecast) -> list[str]:
    """Return the cards around the limit: the largest that do not fit, and the smallest that do."""
    if len(record.fits) <= CARDS_SHOWN:
        return list(record.fits)
    by_answer = {
        answer: [name for name, fits in record.fits.items() if fits is answer and name != record.card]
        for answer in (False, None, True)
    }
    some = CARDS_SHOWN // 3
    names = {record.card, *by_answer[False][-some:], *by_answer[None][:some], *by_answer[True][:some]}
    return [name for name in record.fits if name in names]


def _comparison(record: Forecast, measurement: dict[str, int]) -> Html:
    pairs = (
        ("peak allocated", record.peak_allocated_bytes, measurement.get("allocated_bytes")),
        ("peak reserved", record.peak_reserved_bytes, measurement.get("reserved_bytes")),
        ("total", record.total_bytes, measurement.get("total_bytes")),
    )
    rows = [
        (label, show_bytes(predicted), show_bytes(real), f"{predicted / real - 1:+.3%}")
        for label, predicted, real in pairs
        if predicted is not None and real
    ]
    columns = (Column("peak"), *number_columns("predicted", "measured", "error"))
    return panel(
        "Prediction vs measurement", table(columns, rows), note="The error is predicted / measured - 1."
    )


def _timeline(record: Forecast) -> Figure:
    events = thin(record.timeline, TIMELINE_POINTS)
    at, top, during = max(events, key=lambda event: event[1])
    unit = Unit.of([top])
    x = [event for event, _, _ in events]
    data: list[Trace] = []
    for phase in dict.fromkeys(phase for _, _, phase in events):
        # Each phase is an area of its own, zero elsewhere, so that the legend can hide it.
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
        "text": escape_label(f"peak: {show_bytes(top)} in {during}"),
        "font": {"color": "@ink", "size": 12},
        "bgcolor": "@surface/0.8",
    }
    axes = layout(
        x=titled_axis("allocations and frees, in their order", showgrid=False, zeroline=False),
        y=linear_axis(f"allocated ({unit.name})", range=[0, unit(top) * 1.16 or 1]),
        annotations=[{"x": at, "y": unit(top), **arrow, **label}],
        hovermode="x",
    )
    note = f"Allocated bytes through {_steps(record)}, coloured by phase; the peak is marked."
    return Figure("Memory through the steps", tuple(data), axes, note=note)


def thin(events: tuple[tuple[int, int, str], ...], most: int) -> list[tuple[int, int, str]]:
    """Return at most about `most` events: the lowest and highest of each stretch, which keeps the peak."""
    if len(events) <= most:
        return list(events)
    step = -(-2 * len(events) // most)
    indices: set[int] = {0, len(events) - 1}
    for start in range(0, len(events), step):
        stretch = range(start, min(start + step, len(events)))
        indices |= {max(stretch, key=lambda i: events[i][1]), min(stretch, key=lambda i: events[i][1])}
    return [events[i] for i in sorted(indices)]


def _lines(record: Forecast) -> Html:
    lines = sorted(record.lines, key=lambda line: -line.bytes)
    largest, rest = lines[:LINES_SHOWN], lines[LINES_SHOWN:]

    def row(line: Line) -> tuple[object, ...]:
        source = tag("code", line.code.strip()) if line.code else tag("span", "-", class_="quiet")
        part = join(
            [
                meter(share(line.bytes, largest[0].bytes)),
                f"{share(line.bytes, record.peak_allocated_bytes):.1%}",
            ]
        )
        return (
            place(line.file, line.line),
            source,
            swatch_label(palette.of_phase(line.phase), line.phase),
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
    rows = [row_ for line in largest for row_ in (row(line), *_inside(line, record, largest[0].bytes))]
    note = "The bytes of each source line that are alive at the peak."
    if any(line.inside for line in largest):
        note += " Indented under a line: the modules and library lines that hold it, repeated layers merged."
    if rest:
        note += f" {len(rest)} more lines use {show_bytes(sum(line.bytes for line in rest))} in total."
    return panel("Source lines at the peak", table(columns, rows), note=note)


def _inside(line: Line, record: Forecast, largest_bytes: int) -> list[tuple[object, ...]]:
    """Return the rows under a line: library line, module and code, repeats, bytes, share."""
    rows: list[tuple[object, ...]] = []
    root = common_root(part.module for part in line.inside)
    for part in line.inside:
        name = part.file.replace("\\", "/").rpartition("/")[2]
        at = "" if part.line is None else f":{part.line}"
        where = tag("span", name, tag("b", at), class_="place", title=f"{part.file}{at}")
        each = f"{part.count} × {'' if part.equal else '~'}{show_bytes(part.bytes // part.count)}"
        share_of_peak = f"{share(part.bytes, record.peak_allocated_bytes):.1%}"
        rows.append(
            (
                tag("span", where, class_="inside"),
                join(
                    [
                        tag("div", part.module.removeprefix(root) or "outside modules"),
                        tag("code", part.code, class_="quiet") if part.code else None,
                    ]
                ),
                tag("span", each, class_="keyed") if part.count > 1 else "",
                show_bytes(part.bytes),
                join([meter(share(part.bytes, largest_bytes), "idle"), share_of_peak]),
            )
        )
    return rows


def _modules(record: Forecast) -> Figure:
    pairs = [(module.label, module.bytes) for module in merged_modules(record.modules)]
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
    omitted = len(pairs) - len(rows)
    note = "The bytes of each module that are alive at the peak, repeated layers in one row."
    note += f" {omitted} smaller modules are omitted." if omitted else ""
    return bar_chart("Modules at the peak", rows, axis="alive at the peak", note=note)


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
    columns = (Column("lever"), Column("saves", "number"), Column("of the total"), Column("how", "prose"))
    return panel(
        "Levers", table(columns, rows), note="Changes that lower the peak, with their predicted savings."
    )
