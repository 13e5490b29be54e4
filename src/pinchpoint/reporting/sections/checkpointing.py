"""The section of a checkpointing plan: the modules to recompute, what that frees and costs, and the code."""

from __future__ import annotations

from pinchpoint.core.records import Checkpointing
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.reporting.answers import answer
from pinchpoint.reporting.html import (
    Column,
    Html,
    Tile,
    Tone,
    badge,
    listing,
    number_columns,
    panel,
    table,
    tag,
)
from pinchpoint.reporting.record_reader import count, number, share, word
from pinchpoint.reporting.section import Entry, Headline

KIND = "checkpointing"
TITLE = "Checkpointing"
NOUNS = ("checkpointing plan", "checkpointing plans")
ABOUT = (
    "The modules to recompute in the backward pass so that a script fits a budget at the least extra time."
)
ORDER = 25

_TONES: dict[bool | None, Tone] = {True: "good", False: "bad", None: "warn"}
_ANSWERS = {True: "fits", False: "does not fit", None: "unknown"}


def entry(record: Checkpointing) -> Entry:
    tone = _TONES[record.fits]
    budget = show_bytes(record.budget_bytes)
    modules = f"{len(record.modules)} modules recomputed"
    return Entry(
        title=record.target,
        answer=answer(record),
        headline=Headline(_ANSWERS[record.fits], f"with {modules}", f"budget {budget}", tone),
        tags=(f"budget {budget}", record.card),
        tiles=(
            Tile(
                "predicted peak",
                show_bytes(record.peak_bytes),
                f"{show_bytes(record.before_bytes)} without",
                tone,
            ),
            Tile("modules", str(len(record.modules)), "recomputed"),
            Tile(
                "extra time",
                show_seconds(record.extra_s),
                f"{share(record.extra_s, record.step_s):.1%} of a step, estimated",
            ),
            Tile("margin", show_bytes(record.margin_bytes), "left free"),
        ),
        blocks=tuple(_blocks(record)),
    )


def _blocks(record: Checkpointing) -> list[Html]:
    blocks: list[Html] = []
    if record.reasons:
        blocks.append(panel("Why the peak may be higher", listing(record.reasons)))
    if record.groups:
        rows = [
            (
                tag("strong", word(group, "modules")),
                word(group, "class"),
                word(group, "keeps"),
                count(group, "count"),
                show_bytes(number(group, "freed_bytes")),
                show_seconds(number(group, "recompute_s")),
            )
            for group in record.groups
        ]
        columns = (
            Column("modules"),
            Column("class"),
            Column("keeps"),
            *number_columns("count", "frees", "estimated time"),
        )
        blocks.append(panel("Modules to recompute", table(columns, rows)))
    for way in record.how:
        blocks.append(panel(f"How to switch it on: {word(way, 'title')}", tag("pre", word(way, "code"))))
    if record.tried:
        rows = [
            (
                count(run, "modules"),
                show_bytes(number(run, "total_bytes")),
                show_seconds(number(run, "extra_s")),
                badge(_ANSWERS[run.get("fits")], _TONES[run.get("fits")]),
            )
            for run in record.tried
        ]
        columns = (*number_columns("modules", "predicted total", "extra time"), Column(""))
        blocks.append(panel("Runs on fake tensors", table(columns, rows)))
    if record.refused:
        refused = [f"{name}: {reason}" for name, reason in record.refused.items()]
        blocks.append(panel("Modules that cannot be recomputed", listing(refused)))
    if record.notes:
        blocks.append(panel("Notes", listing(record.notes)))
    return blocks
