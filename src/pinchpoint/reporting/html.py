"""Pieces of the report's HTML, safe by construction.

`tag` escapes every child and attribute that is not already `Html`, and only this module makes
`Html`; so a target, note or line of code cannot become markup, whatever it holds.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "info", "good", "warn", "bad"]
_VOID = frozenset({"meta", "input"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(value: object) -> Html:
    # A file name may hold half a character pair, which no page can.
    return (
        value
        if isinstance(value, Html)
        else Html(html.escape(str(value).encode("utf-8", "replace").decode(), quote=True))
    )


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """One element. `class_` and `data_x` become `class` and `data-x`; None and False leave an attribute out."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            written = key.rstrip("_").replace("_", "-")
            parts.append(written if value is True else f'{written}="{escape(str(value))}"')
    opened = f"<{' '.join(parts)}>"
    return Html(opened if name in _VOID else f"{opened}{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    return Html("".join(escape(child) for child in children if child is not None))


@dataclass(frozen=True)
class Column:
    """A table's column: numbers align right, code is set in a fixed width and may wrap anywhere."""

    head: str
    kind: Literal["text", "number", "code"] = "text"


def numbers(*heads: str) -> tuple[Column, ...]:
    return tuple(Column(head, "number") for head in heads)


@dataclass(frozen=True)
class Tile:
    """One number a person reads first."""

    label: str
    value: object
    note: object = ""
    tone: Tone = "plain"


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Html:
    """A table that scrolls by itself when the window is narrow."""
    head = tag("tr", *(tag("th", c.head, class_=c.kind, scope="col") for c in columns))
    body = [
        tag("tr", *(tag("td", cell, class_=c.kind) for c, cell in zip(columns, row, strict=True)))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def badge(text: object, tone: Tone = "plain") -> Html:
    return tag("span", text, class_=f"badge {tone}")


def keyed(role: str, label: object) -> Html:
    """A label behind a small square in the colour of a role, to tie a row to the plot beside it."""
    square = tag("span", class_="swatch", style=f"background:var(--{role})", aria_hidden="true")
    return tag("span", square, label, class_="keyed")


def meter(share: float, role: str = "accent") -> Html:
    """A bar as long as `share` (0 to 1) of its cell."""
    width = 100.0 * min(1.0, max(0.0, share))
    return tag(
        "span",
        tag("i", style=f"width:{width:.1f}%;background:var(--{role})"),
        class_="meter",
        aria_hidden="true",
    )


def tiles(items: Iterable[Tile]) -> Html:
    cells = [
        tag(
            "div",
            tag("dt", item.label),
            tag("dd", item.value, class_="value"),
            tag("dd", item.note, class_="note") if item.note else None,
            class_=f"tile {item.tone}",
        )
        for item in items
    ]
    return tag("dl", *cells, class_="tiles")


def panel(title: str, *body: object, note: object = "", half: bool = False) -> Html:
    """A titled box; two halves share a row where there is room."""
    head = tag("div", tag("h4", title), tag("p", note) if note else None, class_="head")
    return tag("section", head, *body, class_="panel half" if half else "panel")


def column(*panels: Html) -> Html:
    """Panels above each other in half the width, beside one tall half panel."""
    return tag("div", *panels, class_="column")


def banner(tone: Tone, title: object, lines: Sequence[object] = ()) -> Html:
    """A statement no reader may miss: a gate, a verdict."""
    listed = tag("ul", *(tag("li", line) for line in lines)) if lines else None
    return tag("div", tag("strong", title), listed, class_=f"banner {tone}")


def listing(items: Iterable[object]) -> Html:
    return tag("ul", *(tag("li", item) for item in items), class_="notes")


def chips(items: Iterable[tuple[object, Tone]]) -> Html:
    return tag("div", *(badge(text, tone) for text, tone in items), class_="chips")


def more(summary: str, *body: object) -> Html:
    """Detail folded away on the screen; the page's script unfolds it for paper."""
    return tag("details", tag("summary", summary), *body)


def place(file: str, line: int) -> Html:
    """`folder/file.py:12`, the whole path on hover."""
    short = "/".join(file.replace("\\", "/").split("/")[-2:])
    return tag("span", short, tag("b", f":{line}"), class_="place", title=f"{file}:{line}")
