"""The interface of a section of the report, and the entry that it returns for one record.

A section is a module in `reporting/sections/` whose name has no leading underscore. It defines KIND
(the record's kind), TITLE, ABOUT (one sentence), ORDER (its place on the page) and
`entry(record) -> Entry`. To add a section, add its file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pinchpoint.reporting.answers import Answer
from pinchpoint.reporting.chart import Figure
from pinchpoint.reporting.html import Html, Tile, Tone


@dataclass(frozen=True)
class Headline:
    """A record in the overview: one number or word, its label, and a line of detail."""

    value: str
    label: str
    detail: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class Entry:
    """One record on the page: `tags` are short facts beside the title, and `answer` comes before all else."""

    title: str
    headline: Headline
    answer: Answer
    tags: tuple[str, ...]
    tiles: tuple[Tile, ...]
    blocks: tuple[Html | Figure, ...]
    explanation: str = ""  # of a word in the answer that a reader may not know


class Section(Protocol):
    """The names that a section module must define."""

    KIND: str
    TITLE: str
    NOUNS: tuple[str, str]  # one record and several, for "1 forecast, 2 verdicts"
    ABOUT: str
    ORDER: int

    def entry(self, record: Any, /) -> Entry: ...
