"""The report: records in, one self-contained HTML page out.

The page asks for nothing outside itself: plotly.js, style, script and data are inside, and its
security policy lets run only the scripts whose hashes it names. Sections are found by walking
`render/sections/`; a record whose kind has none is refused.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.records import Record, load, now
from pinchpoint.reporting import palette
from pinchpoint.reporting.chart import Figure, Key
from pinchpoint.reporting.html import Html, badge, join, more, tag, tiles
from pinchpoint.reporting.record_reader import check
from pinchpoint.reporting.section import Entry, Section

MOST_BYTES = 8_000_000
Source = Record | str | Path


def report(records: Source | Iterable[Source], output: str | Path) -> Path:
    """Write one page about these records (objects or paths of their JSON), whole or not at all; return its path."""
    sources = [records] if isinstance(records, (Record, str, Path)) else list(records)
    if not sources:
        raise BadInput("no records to report", hint="give at least one record written by pinchpoint with -o")
    check_output(output)
    for source in sources:
        if not isinstance(source, Record) and Path(source).resolve() == Path(output).resolve():
            raise BadInput(
                f"{output} is one of the records",
                hint="choose another name for the page, such as -o report.html",
            )
    found = sections()
    text = page([_read(source, found) for source in sources], created=now())
    size = len(text.encode())
    if size > MOST_BYTES:
        raise BadInput(
            f"the page would be {size:,} B, above {MOST_BYTES:,} B", hint="report fewer records at one time"
        )
    return write_text(output, text)


def page(records: Iterable[Record], *, created: str) -> str:
    """The page as text."""
    found = sections()
    shown = [_Shown(found[r.kind], r, found[r.kind].entry(r)) for r in records]
    # The same order on the page, in the contents and in the overview; equal kinds keep the order they were given in.
    shown.sort(key=lambda item: (item.section.ORDER, item.section.KIND))
    figures: list[dict[str, Any]] = []
    main = tag("main", _overview(shown), *_kinds(shown, figures), _foot(created), id="main")
    skip = tag("a", "Skip to the report", href="#main", class_="skip")
    body = join([skip, _top(created), tag("div", _contents(shown), main, class_="frame")])
    return _document(_title(shown), body, figures)


def sections() -> dict[str, Section]:
    """Every section by the kind of record it draws."""
    package = importlib.import_module("pinchpoint.reporting.sections")
    names = [info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_")]
    modules = [cast(Section, importlib.import_module(f"{package.__name__}.{name}")) for name in names]
    return {module.KIND: module for module in modules}


@dataclass(frozen=True)
class _Shown:
    section: Section
    record: Record
    entry: Entry


def _read(source: Source, found: dict[str, Section]) -> Record:
    record, name = (
        (source, f"the {source.kind}") if isinstance(source, Record) else (load(source), str(source))
    )
    if record.kind not in found:
        raise BadInput(
            f"{name} is a {record.kind}; the report has no section for it",
            hint=f"kinds it shows: {', '.join(sorted(found))}",
        )
    check(record, name)
    return record


def _title(shown: list[_Shown]) -> str:
    targets = list(dict.fromkeys(item.entry.title for item in shown))
    return "pinchpoint: " + ", ".join(targets[:3]) + (f" and {len(targets) - 3} more" if targets[3:] else "")


def _top(created: str) -> Html:
    mark = tag("span", class_="mark", aria_hidden="true")
    name = tag("a", mark, tag("b", "pinchpoint"), tag("span", "report"), href="#overview", class_="name")
    made = tag("time", created.replace("T", " ").replace("+00:00", " UTC"), datetime=created)
    paper = tag("button", "Print", type="button", id="print")
    theme = tag("button", "Theme", type="button", id="theme", title="Switch between light and dark")
    return tag("header", name, made, paper, theme, class_="top")


def _by_kind(shown: list[_Shown]) -> list[tuple[Section, list[tuple[int, _Shown]]]]:
    groups: dict[str, list[tuple[int, _Shown]]] = {}
    for number, item in enumerate(shown, 1):
        groups.setdefault(item.section.KIND, []).append((number, item))
    return [(group[0][1].section, group) for group in groups.values()]


def _contents(shown: list[_Shown]) -> Html:
    def link(number: int, entry: Entry) -> Html:
        dot = tag("i", class_=f"dot {entry.headline.tone}")
        return tag(
            "li",
            tag("a", dot, entry.title, href=f"#r{number}", title=f"{entry.title}: {entry.headline.value}"),
        )

    groups = [tag("li", tag("a", "Overview", href="#overview"))]
    for section, group in _by_kind(shown):
        links = [link(number, item.entry) for number, item in group]
        groups.append(tag("li", tag("a", section.TITLE, href=f"#{section.KIND}"), tag("ul", *links)))
    return tag("nav", tag("ul", *groups), class_="contents", aria_label="Contents")


def _overview(shown: list[_Shown]) -> Html:
    cards = [
        tag(
            "a",
            tag("span", item.section.KIND, class_="kind"),
            tag("strong", item.entry.headline.value),
            tag("span", item.entry.headline.label, class_="label"),
            tag("span", item.entry.title, class_="target"),
            tag("span", item.entry.headline.detail, class_="detail"),
            href=f"#r{number}",
            class_=f"card {item.entry.headline.tone}",
        )
        for number, item in enumerate(shown, 1)
    ]
    counts = ", ".join(
        f"{len(group)} {section.KIND if len(group) == 1 else section.TITLE.lower()}"
        for section, group in _by_kind(shown)
    )
    return tag(
        "section",
        tag("h1", "Overview"),
        tag("p", counts, class_="about"),
        tag("div", *cards, class_="cards"),
        id="overview",
    )


def _kinds(shown: list[_Shown], figures: list[dict[str, Any]]) -> list[Html]:
    return [
        tag(
            "section",
            tag("h2", section.TITLE),
            tag("p", section.ABOUT, class_="about"),
            *(_article(number, item, figures) for number, item in group),
            id=section.KIND,
            class_="kind",
        )
        for section, group in _by_kind(shown)
    ]


def _article(number: int, item: _Shown, figures: list[dict[str, Any]]) -> Html:
    entry = item.entry
    tags = tag("div", *(badge(text) for text in entry.tags if text), class_="chips")
    head = tag("div", tag("h3", entry.title), tags, class_="title")
    blocks = [block if isinstance(block, Html) else _figure(block, figures) for block in entry.blocks]
    body = tag("div", *blocks, class_="blocks")
    return tag("article", head, entry.lead, tiles(entry.tiles), body, _made(item.record), id=f"r{number}")


def _figure(figure: Figure, figures: list[dict[str, Any]]) -> Html:
    """A place for a plot; its data joins `figures`, and its place in them is how the script finds it."""
    number = str(len(figures))
    figures.append(figure.to_dict())
    head = tag(
        "figcaption", tag("h4", figure.title), tag("p", figure.note) if figure.note else None, class_="head"
    )
    keys = [_key(key, number) for key in figure.legend()]
    legend = tag("div", *keys, class_="keys") if keys else None
    height = f"height:{figure.height}px"
    canvas = tag("div", class_="plot", data_figure=number, style=height, role="img", aria_label=figure.title)
    return tag("figure", head, legend, canvas, class_="panel half" if figure.half else "panel")


def _key(key: Key, number: str) -> Html:
    glyph = tag("span", key.glyph, style=f"color:var(--{key.role})", aria_hidden="true")
    ties = {"data_figure": number, "data_name": key.name}
    return tag("button", glyph, key.name, type="button", class_="key", aria_pressed="true", **ties)


def _made(record: Record) -> Html:
    data = record.to_dict()
    machine = {str(key): value for key, value in dict(data.get("machine") or {}).items()}
    versions = machine.pop("versions", None)
    facts = [
        ("made", data.get("created")),
        *machine.items(),
        *(versions.items() if isinstance(versions, dict) else ()),
    ]
    known = [(str(key).replace("_", " "), value) for key, value in facts if value not in (None, "")]
    rows = [tag("div", tag("dt", key), tag("dd", value)) for key, value in known]
    return more("Where this was made", tag("dl", *rows, class_="facts"))


def _foot(created: str) -> Html:
    return tag(
        "footer",
        f"Made by pinchpoint, {created}. GiB = 2^30 B, MiB = 2^20 B; sizes: k = 1,000, M = 1,000,000.",
    )


def _document(title: str, body: Html, figures: list[dict[str, Any]]) -> str:
    # plotly is a heavy import and only the page needs it.
    from plotly.offline import get_plotlyjs

    # A browser reads \r as \n before it takes the hash.
    scripts = [text.replace("\r\n", "\n").replace("\r", "\n") for text in (get_plotlyjs(), _asset("page.js"))]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", title),
            Html(f"<style>{palette.style()}{_asset('page.css')}</style>"),
        ]
    )
    data = Html(f'<script type="application/json" id="figures">{_json(figures)}</script>')
    without = tag("noscript", tag("p", "The plots need JavaScript.", class_="quiet"))
    ending = join([without, data, *(Html(f"<script>{text}</script>") for text in scripts)])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}{ending}</body></html>\n'


def _json(value: Any) -> str:
    """JSON that cannot end the script element it sits in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return resources.files("pinchpoint.reporting").joinpath("assets", name).read_text(encoding="utf-8")
