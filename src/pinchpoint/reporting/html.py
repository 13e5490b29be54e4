"""HTML elements of the report, safe by construction.

`tag` escapes every child and attribute that is not already `Html`, and only this module creates
`Html`, so no target, note or line of code from a record can become markup.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "info", "good", "warn", "bad"]
_VOID = frozenset({"meta", "input", "img"})


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


def escape(value: object) -> Html:
    # A file name may contain a lone surrogate, which a page cannot.
    return (
        value
        if isinstance(value, Html)
        else Html(html.escape(str(value).encode("utf-8", "replace").decode(), quote=True))
    )


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return one element.

    `class_` and `data_x` become `class` and `data-x`; None and False omit an attribute.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            parts.append(attribute if value is True else f'{attribute}="{escape(str(value))}"')
    start = f"<{' '.join(parts)}>"
    return Html(start if name in _VOID else f"{start}{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    return Html("".join(escape(child) for child in children if child is not None))


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers align right, code may wrap anywhere, and sentences stay readable."""

    head: str
    kind: Literal["text", "number", "code", "prose"] = "text"


def number_columns(*heads: str) -> tuple[Column, ...]:
    return tuple(Column(head, "number") for head in heads)


@dataclass(frozen=True)
class Tile:
    """One of the figures at the top of an entry."""

    label: str
    value: object
    note: object = ""
    tone: Tone = "plain"


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table that scrolls on its own if the window is narrow."""
    head = tag("tr", *(tag("th", c.head, class_=c.kind, scope="col") for c in columns))
    body = [
        tag("tr", *(tag("td", cell, class_=c.kind) for c, cell in zip(columns, row, strict=True)))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def badge(text: object, tone: Tone = "plain") -> Html:
    return tag("span", text, class_=f"badge {tone}")


def swatch_label(role: str, label: object) -> Html:
    """Return a label after a small square in the colour of a role, which links a row to its plot."""
    square = tag("span", class_="swatch", style=f"background:var(--{role})", aria_hidden="true")
    return tag("span", square, label, class_="keyed")


def meter(share: float, role: str = "accent") -> Html:
    """Return a bar whose length is `share` (0 to 1) of its cell."""
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
    """Return a box with a title; two halves share a row if there is room."""
    head = tag("div", tag("h4", title), tag("p", note) if note else None, class_="head")
    return tag("section", head, *body, class_="panel half" if half else "panel")


def column(*panels: Html) -> Html:
    """Return panels stacked in half the width, beside one tall half panel."""
    return tag("div", *panels, class_="column")


def prose(text: object) -> Html:
    """Return a sentence in which `code` between backquotes is set as code."""
    if isinstance(text, Html):
        return text
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # a backquote without its partner
        return escape(text)
    return join(tag("code", part) if i % 2 else escape(part) for i, part in enumerate(parts))


def banner(tone: Tone, title: object, lines: Sequence[object] = (), *, note: object = "") -> Html:
    """Return a prominent statement, such as an answer: a sentence, what to change, and a note in small."""
    items = tag("ul", *(tag("li", prose(line)) for line in lines)) if lines else None
    small = tag("p", note) if note else None
    return tag("div", tag("strong", title), items, small, class_=f"banner {tone}")


def is_half(block: Html) -> bool:
    """Whether a panel, or a column of panels, takes half the width."""
    return block.startswith(('<section class="panel half"', '<div class="column"'))


def full_width(block: Html) -> Html:
    """Return a half panel, or a column of panels, in the whole width."""
    for half, whole in (("panel half", "panel"), ("column", "column whole")):
        if block.startswith((f'<section class="{half}"', f'<div class="{half}"')):
            return Html(block.replace(half, whole, 1))
    return block


def listing(items: Iterable[object]) -> Html:
    return tag("ul", *(tag("li", prose(item)) for item in items), class_="notes")


def chips(items: Iterable[tuple[object, Tone]]) -> Html:
    return tag("div", *(badge(text, tone) for text, tone in items), class_="chips")


def folded_details(summary: str, *body: object) -> Html:
    """Return details that are folded on screen; the page's script unfolds them for print."""
    return tag("details", tag("summary", summary), *body)


def place(file: str, line: int) -> Html:
    """Return `folder/file.py:12`, with the whole path on hover."""
    short = "/".join(file.replace("\\", "/").split("/")[-2:])
    return tag("span", short, tag("b", f":{line}"), class_="place", title=f"{file}:{line}")
