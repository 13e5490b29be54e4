"""The section of a plan: the largest size that fits a budget, its chunk and variant, and the search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pinchpoint.core.records import Plan
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting import palette
from pinchpoint.reporting.answers import answer
from pinchpoint.reporting.axes import exact_size, log_byte_axis, log_size_axis, size_title
from pinchpoint.reporting.chart import Figure, Trace, hover, layout, level, marks, symbol_of
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    Tone,
    badge,
    folded_details,
    join,
    listing,
    meter,
    number_columns,
    panel,
    swatch_label,
    table,
    tag,
)
from pinchpoint.reporting.record_reader import count, number, share, shortlist, word
from pinchpoint.reporting.section import Entry, Headline

KIND = "plan"
TITLE = "Plans"
NOUNS = ("plan", "plans")
ABOUT = "The largest size, chunk and variant that are predicted to fit a budget."
ORDER = 20


def entry(record: Plan) -> Entry:
    tone: Tone = "good" if record.size is not None else "warn"
    budget = show_bytes(record.budget_bytes)
    facts = ", ".join(part for part in (record.mode, budget, record.variant) if part)
    usage = f"{share(record.peak_bytes, record.budget_bytes):.1%} of the budget"
    if record.peak_bytes > record.budget_bytes and record.size is not None:
        usage += ", before the allocator frees what it has cached"
    return Entry(
        title=record.target,
        answer=answer(record),
        headline=Headline(
            exact_size(record.size) if record.size is not None else "unknown",
            f"largest {size_title(record.axis)} that fits" if len(record.tried) > 1 else record.axis,
            facts,
            tone,
        ),
        tags=(
            record.mode,
            f"budget {budget}",
            "" if record.complete else "stopped before all runs were made",
        ),
        tiles=(
            _size(record, tone),
            *_variant_tiles(record),
            Tile("predicted peak", show_bytes(record.peak_bytes), usage, tone),
            Tile("margin", show_bytes(record.margin_bytes), "left free"),
        ),
        blocks=tuple(_blocks(record)),
    )


def _size(record: Plan, tone: Tone) -> Tile:
    """Return the tile of the answer: the largest size known to fit, and the largest that may fit."""
    if record.size is None:
        note = f"{exact_size(record.possible_size)} fits unless the peak is higher than predicted"
        return Tile(record.axis, "unknown", note, tone)
    if record.possible_size is not None:
        note = f"known to fit; unknown up to {exact_size(record.possible_size)}"
        return Tile(record.axis, exact_size(record.size), note, tone)
    return Tile(record.axis, exact_size(record.size), "per step")


def _variant_tiles(record: Plan) -> list[Tile]:
    """Return chunk and variant, which a script does not have."""
    tiles = []
    if record.chunk is not None:
        tiles.append(Tile("chunk", exact_size(record.chunk), f"{record.axis} processed at one time"))
    if record.variant:
        note = f"allows the most {record.axis}" if len(record.choices) > 1 else ""
        tiles.append(Tile("variant", record.variant, note))
    return tiles


def _blocks(record: Plan) -> list[Html | Figure]:
    blocks: list[Html | Figure] = []
    if record.reasons:
        blocks.append(panel("Why the peak may be higher", listing(record.reasons)))
    names = _variants(record)
    runs = [run for run in record.tried if number(run, "total_bytes")]
    at_sizes, at_chunks = _best_run_per_size(runs), _runs_by_chunk(runs)
    if len(at_sizes) > 1 or (at_sizes and not at_chunks):
        blocks.append(_search(record, at_sizes, "size", names))
    if at_chunks:
        blocks.append(_search(record, at_chunks, "chunk", names))
    if len(record.choices) > 1 or any(word(item, "variant") for item in record.choices):
        blocks.append(_choices(record, names))
    if record.cards:
        blocks.append(_cards(record, names))
    if record.tried:
        blocks.append(_runs(record, names))
    if record.notes:
        blocks.append(panel("Notes", listing(record.notes)))
    return blocks


def _best_run_per_size(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one run per variant and size.

    Of the runs with different chunks, it is the largest that fits, or else the smallest.
    """
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: number(run, "total_bytes") or 0.0):
        key = (word(run, "variant"), count(run, "size") or 0)
        if key[1] and (key not in best or run.get("fits")):
            best[key] = run
    return list(best.values())


def _runs_by_chunk(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs at the variant and size with most chunks, or nothing if no size has two chunks."""
    by_size: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for run in runs:
        if count(run, "chunk"):
            by_size.setdefault((word(run, "variant"), count(run, "size")), []).append(run)
    most = max(by_size.values(), key=len, default=[])
    return most if len(most) > 1 else []


def _variants(record: Plan) -> list[str]:
    """Return every variant in the order of the record, so that each keeps one colour."""
    variants = [word(item, "variant") for item in (*record.choices, *record.tried, *record.cards)]
    return list(dict.fromkeys([*variants, record.variant or ""]))


def _label(name: str, names: list[str]) -> Html:
    return swatch_label(palette.of_series(name, names), name or "-")


def _search(record: Plan, runs: list[dict[str, Any]], along: str, names: list[str]) -> Figure:
    called = record.axis if along == "size" else along
    data = [trace for name in names if (trace := _runs_of(name, runs, along, names))]
    totals = [number(run, "total_bytes") or 1.0 for run in runs]
    budget, label = level(
        record.budget_bytes, f"budget {show_bytes(record.budget_bytes)}", role="bad", dash="solid"
    )
    lines = [budget]
    if 0 < record.margin_bytes < record.budget_bytes:
        lines.append(level(record.budget_bytes - record.margin_bytes, "", role="warn", dash="dot")[0])
    axes = layout(
        x=log_size_axis([number(run, along) or 1.0 for run in runs], size_title(called)),
        y=log_byte_axis([*totals, record.budget_bytes], "predicted total"),
        shapes=lines,
        annotations=[label],
    )
    note = "Crossed, open markers do not fit. The dotted line is the budget minus the margin."
    if any(run.get("fits") is None for run in runs):
        note += " Open circles without a cross are unknown: the peak may be higher than drawn."
    size = exact_size(count(runs[0], "size"))
    named = f"{size} {record.axis}" if record.axis.endswith("s") else f"{record.axis} {size}"
    at = f" with {named}" if along == "chunk" else ""
    title = f"{called.capitalize()}s tried" if called in ("size", "chunk") else f"{called.capitalize()} tried"
    return Figure(f"{title}{at}", tuple(data), axes, note=note)


def _runs_of(name: str, runs: list[dict[str, Any]], along: str, names: list[str]) -> Trace | None:
    points = sorted(
        (run for run in runs if word(run, "variant") == name), key=lambda run: number(run, along) or 0
    )
    if not points:
        return None
    symbol = symbol_of(name, names)
    trace = marks(
        name or "runs",
        [number(run, along) for run in points],
        [number(run, "total_bytes") for run in points],
        role=palette.of_series(name, names),
        texts=[_text(name, run) for run in points],
        symbol=symbol,
        dash="solid",
        size=11,
    )
    unknown = {None: "circle-open", False: "circle-x-open"}
    trace["marker"]["symbol"] = [symbol if run.get("fits") else unknown[run.get("fits")] for run in points]
    return trace


def _text(name: str, run: dict[str, Any]) -> str:
    facts = [(key, exact_size(value)) for key in ("size", "chunk") if (value := count(run, key)) is not None]
    return hover(
        name or "run",
        *facts,
        ("total", show_bytes(number(run, "total_bytes"))),
        ("fits", {True: "yes", None: "unknown"}.get(run.get("fits"), "no")),
    )


def _choices(record: Plan, names: list[str]) -> Html:
    choices = sorted(record.choices, key=lambda item: -(count(item, "size") or 0))
    top = count(choices[0], "size") or 0
    rows = []
    for item in choices:
        name, size = word(item, "variant"), count(item, "size")
        marker = badge("chosen", "good") if name == (record.variant or "") else None
        length = meter(share(size or 0, top), palette.of_series(name, names))
        details = (
            exact_size(count(item, "chunk")),
            show_bytes(number(item, "peak_bytes")),
            word(item, "why"),
        )
        rows.append((join([_label(name, names), " ", marker]), exact_size(size), length, *details))
    columns = (
        Column("variant"),
        *number_columns(size_title(record.axis)),
        Column(""),
        *number_columns("chunk", "predicted peak"),
        Column(""),
    )
    return panel(
        f"Largest {size_title(record.axis)} per variant",
        table(columns, rows),
        note=f"The largest {size_title(record.axis)} of each variant within the budget.",
    )


def _cards(record: Plan, names: list[str]) -> Html:
    cards = {
        word(item, "card"): item
        for item in sorted(record.cards, key=lambda item: number(item, "budget_bytes") or 0)
    }
    # For a requested size, only the chunk differs from card to card.
    along = "size" if len({count(item, "size") for item in cards.values()} - {None}) != 1 else "chunk"
    top = max(count(item, along) or 0 for item in cards.values())

    def rows(card_names: Iterable[str]) -> list[tuple[object, ...]]:
        return [
            _card(name, cards[name], share(count(cards[name], along) or 0, top), names) for name in card_names
        ]

    columns = (Column("card"), *number_columns("memory", record.axis, "chunk"), Column(""), Column("variant"))
    first = shortlist({name: number(item, "budget_bytes") for name, item in cards.items()})
    body = [table(columns, rows(first))]
    if len(first) < len(cards):
        body.append(folded_details(f"all {len(cards)} cards", table(columns, rows(cards))))
    called = size_title(record.axis) if along == "size" else along
    return panel(f"Largest {called} per card", *body, note=f"The largest {called} that fits each card.")


def _card(name: str, item: dict[str, Any], part: float, names: list[str]) -> tuple[object, ...]:
    variant, size = word(item, "variant"), count(item, "size")
    memory = show_bytes(number(item, "budget_bytes"))
    possible = count(item, "possible_size")
    if not size and possible:
        unknown = badge(f"unknown up to {exact_size(possible)}", "warn")
        return tag("strong", name), memory, unknown, "-", "", "-"
    if not size and item.get("how") == "unknown":
        return tag("strong", name), memory, badge("not found", "warn"), "-", "", "-"
    if not size:
        return tag("strong", name), memory, badge("nothing fits", "bad"), "-", "", "-"
    bar = meter(part, palette.of_series(variant, names))
    return (
        tag("strong", name),
        memory,
        exact_size(size),
        exact_size(count(item, "chunk")),
        bar,
        _label(variant, names),
    )


def _runs(record: Plan, names: list[str]) -> Html:
    rows = []
    for run in record.tried:
        fits = badge("fits", "good") if run.get("fits") else badge("does not fit", "bad")
        if run.get("fits", False) is None:
            fits = badge("? unknown", "warn")
        sizes = (
            exact_size(count(run, "size")),
            exact_size(count(run, "chunk")),
            show_bytes(number(run, "total_bytes")),
        )
        rows.append((_label(word(run, "variant"), names), *sizes, fits))
    columns = (Column("variant"), *number_columns(record.axis, "chunk", "predicted total"), Column(""))
    return panel(
        "Runs on fake tensors",
        folded_details(f"{len(rows)} runs, in the order of the search", table(columns, rows)),
    )
