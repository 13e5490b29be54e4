"""`Comparison`: what differs between two records of the same kind, as plain data and as Markdown.

A comparison reads the two records and nothing else. The largest changes come first in every table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record
from pinchpoint.core.units import show_bytes, show_seconds, show_size

Unit = Literal["bytes", "bytes per point", "seconds", "size", "factor"]


@dataclass(frozen=True)
class Change:
    """One quantity before and after; None where a record does not have it."""

    name: str
    before: float | None
    after: float | None
    unit: Unit = "bytes"
    code: str = ""  # of a source line

    @property
    def difference(self) -> float:
        return (self.after or 0) - (self.before or 0)

    @property
    def growth(self) -> float | None:
        """`after / before - 1`; None if there is no before, or if it is 0."""
        return None if not self.before or self.after is None else self.after / self.before - 1

    def cells(self) -> tuple[str, str, str, str]:
        """The texts of before, after, difference and growth."""
        if self.before is None or self.after is None:
            percent = "new" if self.before is None else "gone"
        elif self.growth is None:
            percent = "-" if self.after == self.before else "new"
        else:
            percent = show_growth(self.growth)
        known = self.unit != "factor" and not (self.before is None and self.after is None)
        signed = show_signed(self.difference, self.unit) if known else "-"
        return show_value(self.before, self.unit), show_value(self.after, self.unit), signed, percent


@dataclass(frozen=True)
class Changes:
    """A table of changes; `head` names what a row is. Rows without a change are left out of long tables."""

    title: str
    head: str
    rows: tuple[Change, ...]
    note: str = ""

    def shown(self, most: int) -> tuple[Change, ...]:
        """The rows to show: all if they are few, else the largest changes."""
        if len(self.rows) <= most:
            return self.rows
        return tuple(row for row in self.rows if row.difference)[:most]


@dataclass(frozen=True)
class CardChange:
    """Whether a card is large enough, before and after; None if that is unknown."""

    card: str
    before: bool | None
    after: bool | None


@dataclass(frozen=True, repr=False)
class Comparison:
    """What differs between two records. `growth` is that of the peak, by its largest measure."""

    kind: str
    before: Record
    after: Record
    conclusion: tuple[str, ...]  # the answer in a few sentences, the most important first
    tables: tuple[Changes, ...]  # the first is the peak, or what the records are about
    growth: float | None  # 0.05 for a peak that is 5 % higher; None if there are no peaks to compare
    growth_of: str = ""  # which measure of the peak grew by `growth`
    cards: tuple[CardChange, ...] = ()  # of which the answer changed
    fits: tuple[tuple[str, bool | None], ...] = ()  # each card of the record after
    lists: tuple[tuple[str, tuple[str, ...]], ...] = ()  # titles and what is new or gone, such as findings
    notes: tuple[str, ...] = ()  # what limits the comparison: other sizes, targets, versions

    def __repr__(self) -> str:
        return f"Comparison of two records of the kind {self.kind}: {' '.join(self.conclusion)}"

    def failures(self, *, max_growth: float | None = None, card: str | None = None) -> tuple[str, ...]:
        """Sentences about what exceeds the limits; empty if nothing does.

        max_growth: 0.05 allows a peak that is 5 % higher. card: must be large enough for the record after;
        "unknown" fails as well. Raises `BadInput` if the records do not contain what a limit needs.
        """
        sentences = []
        if max_growth is not None:
            if self.growth is None:
                raise BadInput(
                    f"The two {self.kind} records have no peaks to compare.",
                    hint="Compare two records that have a peak in common, such as forecasts.",
                )
            if self.growth > max_growth:
                sentences.append(
                    f"The {self.growth_of} grows by {show_growth(self.growth, signed=False)}, which is more"
                    f" than {show_growth(max_growth, signed=False)}."
                )
        if card is not None:
            sentences += self._card_failures(card)
        return tuple(sentences)

    def _card_failures(self, card: str) -> list[str]:
        fits = dict(self.fits)
        if card not in fits:
            raise BadInput(
                f"The record after does not say whether {card} is large enough.",
                hint=(
                    f"Name one of its cards, such as {next(iter(fits))}, or predict with --card {card}."
                    if fits
                    else "Compare two forecasts; other records do not name the cards they fit."
                ),
            )
        if fits[card]:
            return []
        fitted_before = any(change.card == card and change.before for change in self.cards)
        if fits[card] is None:
            return [f"It is unknown whether it {'still ' if fitted_before else ''}fits {card}."]
        return [f"It {'no longer fits' if fitted_before else 'does not fit'} {card}."]

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_markdown(self, *, most: int = 10) -> str:
        """The comparison as Markdown for a pull request or a job summary. most: rows of each table."""
        blocks = ["  \n".join(escape_markdown(sentence) for sentence in self.conclusion)]
        for table in self.tables:
            if rows := table.shown(most):
                blocks.append(_markdown_table(table, rows))
        if self.cards:
            signs = {True: "fits", False: "does not fit", None: "unknown"}
            rows = [f"| {_code(c.card)} | {signs[c.before]} | {signs[c.after]} |" for c in self.cards[:most]]
            if len(self.cards) > most:
                rows.append(f"| and {len(self.cards) - most} more | | |")
            blocks.append("\n".join(["**Cards**", "", "| card | before | after |", "|---|---|---|", *rows]))
        for title, items in self.lists:
            shown = [f"- {escape_markdown(item)}" for item in items[:most]]
            more = [f"- and {len(items) - most} more"] if len(items) > most else []
            blocks.append("\n".join([f"**{title}**", "", *shown, *more]))
        if self.notes:
            blocks.append("\n".join(f"- {escape_markdown(note)}" for note in self.notes))
        return "\n\n".join(blocks) + "\n"


def show_growth(growth: float, *, signed: bool = True) -> str:
    """`+5.0 %`, or `5.0 %` after a word such as "grows by"."""
    growth = growth if signed else abs(growth)
    digits = 0 if growth == 0 or abs(growth) >= 0.995 else 1
    text = f"{growth:{'+' if signed and growth else ''},.{digits}%}"
    return text.replace("%", " %")


def show_value(value: float | None, unit: Unit) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return show_bytes(value)
    if unit == "seconds":
        return show_seconds(value)
    if unit == "size":
        return show_size(round(value))
    return f"{value:,.1f} B" if unit == "bytes per point" else f"{value:.2f}"


def show_signed(value: float, unit: Unit) -> str:
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return sign + show_value(abs(value), unit)


def by_difference(rows: list[Change]) -> tuple[Change, ...]:
    """The rows with the largest changes first; rows without a change last, the largest first."""
    return tuple(sorted(rows, key=lambda row: (-abs(row.difference), -(row.after or 0), row.name)))


def escape_markdown(text: str) -> str:
    """Text of a record as Markdown that shows exactly this text on one line."""
    text = " ".join(text.split())
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    return re.sub(r"([\\`*_{}\[\]|~#])", r"\\\1", text)


def _code(text: str) -> str:
    """Text as code in a cell of a table."""
    text = " ".join(text.split()).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}" if text else ""


def _markdown_table(table: Changes, rows: tuple[Change, ...]) -> str:
    has_code = any(row.code for row in rows)
    heads = [table.head, "before", "after", "difference", "", *(["code"] if has_code else [])]
    lines = [f"**{table.title}**", "", f"| {' | '.join(heads)} |"]
    lines.append(
        "|" + "|".join(["---", "---:", "---:", "---:", "---:", *(["---"] if has_code else [])]) + "|"
    )
    for row in rows:
        name = _code(row.name) if table.head in ("line", "module", "card") else escape_markdown(row.name)
        cells = [name, *row.cells(), *([_code(row.code)] if has_code else [])]
        lines.append(f"| {' | '.join(cells)} |")
    omitted = len(table.rows) - len(rows)
    if omitted:
        lines += ["", f"{omitted} more without a change, or with a smaller one."]
    if table.note:
        lines += ["", escape_markdown(table.note)]
    return "\n".join(lines)
