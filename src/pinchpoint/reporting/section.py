"""What a section of the report makes of one record, and the contract a section module keeps.

A section is a module in `render/sections/` whose name has no leading underscore. It defines KIND
(the record's kind), TITLE, ABOUT (one sentence), ORDER (its place on the page) and
`entry(record) -> Entry`. Adding one is adding its file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pinchpoint.reporting.chart import Figure
from pinchpoint.reporting.html import Html, Tile, Tone


@dataclass(frozen=True)
class Headline:
    """A record in the overview: one number or word, what it is, and a line more."""

    value: str
    label: str
    detail: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class Entry:
    """One record on the page. `tags` are short facts beside the title; `lead` comes before the tiles."""

    title: str
    headline: Headline
    tags: tuple[str, ...]
    tiles: tuple[Tile, ...]
    blocks: tuple[Html | Figure, ...]
    lead: Html | None = None


class Section(Protocol):
    """What the page asks of a section module."""

    KIND: str
    TITLE: str
    ABOUT: str
    ORDER: int

    def entry(self, record: Any, /) -> Entry: ...
