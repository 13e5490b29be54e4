"""The verb `report`: one self-contained HTML page about any number of records.

The page loads nothing from outside: it contains plotly.js, style, script and data, and its security
policy allows only the scripts whose hashes it names. Sections are found by walking
`reporting/sections/`; a record whose kind has no section is shown as its plain values.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, cast

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.records import Record, now
from pinchpoint.reporting import palette
from pinchpoint.reporting.chart import Figure, LegendEntry
from pinchpoint.reporting.comparisons import section as comparison_section
from pinchpoint.reporting.comparisons.compare import compare as compare_records
from pinchpoint.reporting.comparisons.comparison import Comparison
from pinchpoint.reporting.gallery import GalleryPicture, gallery
from pinchpoint.reporting.html import (
    Html,
    badge,
    banner,
    folded_details,
    full_width,
    is_half,
    join,
    tag,
    tiles,
)
from pinchpoint.reporting.other_records import BenchFile, load_any, other_record
from pinchpoint.reporting.record_reader import check_record
from pinchpoint.reporting.section import Entry, Section

MAX_BYTES = 8_000_000
Source = Record | str | Path


def report(
    records: Source | Iterable[Source],
    output: str | Path,
    *,
    compare: bool = False,
    pictures: Iterable[GalleryPicture] = (),
) -> Path:
    """Write one page about records (objects or JSON paths), completely or not at all; return its path.

    compare: write a page about what changed between two records of the same kind, before and after.
    pictures: files (PNG or GIF), each with a title and a caption, that the page shows after its overview.
    """
    sources = [records] if isinstance(records, (Record, str, Path)) else list(records)
    if not sources:
        raise BadInput(
            "The report has no records.", hint="Give at least one record that pinchpoint wrote with -o."
        )
    check_output(output)
    for source in sources:
        if not isinstance(source, Record) and Path(source).resolve() == Path(output).resolve():
            raise BadInput(
                f"{output} is one of the records, and the page would overwrite it.",
                hint="Choose another name for the page, such as -o report.html.",
            )
    known_sections = sections()
    records_read = [_read(source, known_sections) for source in sources]
    if compare:
        if len(records_read) != 2:
            raise BadInput(
                f"A comparison takes two records, but {len(records_read)} were given.",
                hint="Give the record before and the record after, in this order.",
            )
        text = comparison_page(compare_records(*records_read), created=now())
    else:
        text = page(records_read, created=now(), pictures=pictures)
    size = len(text.encode())
    if size > MAX_BYTES:
        raise BadInput(
            f"The page would be {size:,} bytes, but the limit is {MAX_BYTES:,} bytes.",
            hint="Report fewer records at one time.",
        )
    return write_text(output, text)


def page(records: Iterable[Record], *, created: str, pictures: Iterable[GalleryPicture] = ()) -> str:
    """Return the page as text."""
    known_sections = sections()
    items = [_Item(known_sections[r.kind], known_sections[r.kind].entry(r), (("", r),)) for r in records]
    # The order is the same on the page, in the contents and in the overview; records of a kind keep their
    # order.
    items.sort(key=lambda item: (item.section.ORDER, item.section.KIND))
    return _page(items, created, gallery(pictures))


def comparison_page(comparison: Comparison, *, created: str) -> str:
    """Return the page of a comparison as text."""
    records = (("before", comparison.before), ("after", comparison.after))
    section = cast(Section, comparison_section)
    return _page([_Item(section, section.entry(comparison), records)], created)


def _page(items: list[_Item], created: str, pictures: Html | None = None) -> str:
    figures: list[dict[str, Any]] = []
    several = len(items) > 1  # one record needs no overview and no contents
    overview = _overview(items) if several else None
    main = tag("main", overview, pictures, *_kinds(items, figures), _foot(created), id="main")
    skip = tag("a", "Skip to the report", href="#main", class_="skip")
    frame = tag(
        "div", _contents(items) if several else None, main, class_="frame" if several else "frame single"
    )
    body = join([skip, _top(created), frame])
    return _document(_title(items), body, figures)


def sections() -> dict[str, Section]:
    """Return every section by the kind of record it draws."""
    package = importlib.import_module("pinchpoint.reporting.sections")
    names = [info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_")]
    modules = [cast(Section, importlib.import_module(f"{package.__name__}.{name}")) for name in names]
    return {module.KIND: module for module in modules}


@dataclass(frozen=True)
class _Item:
    section: Section
    entry: Entry
    records: tuple[tuple[str, Record], ...]  # what the entry is about; the names tell several apart


def _read(source: Source, known_sections: dict[str, Section]) -> Record:
    record, name = (
        (source, f"The {source.kind}") if isinstance(source, Record) else (load_any(source), str(source))
    )
    # A bench is drawn from its plain values, because its class belongs to the systems.
    if record.kind not in known_sections or (record.kind == BenchFile.kind and type(record) is not BenchFile):
        return other_record(record.to_dict())
    check_record(record, name)
    return record


def _title(items: list[_Item]) -> str:
    targets = list(dict.fromkeys(item.entry.title for item in items))
    return "pinchpoint: " + ", ".join(targets[:3]) + (f" and {len(targets) - 3} more" if targets[3:] else "")


def _top(created: str) -> Html:
    mark = tag("span", class_="mark", aria_hidden="true")
    name = tag("a", mark, tag("b", "pinchpoint"), tag("span", "report"), href="#main", class_="name")
    created_at = tag("time", created.replace("T", " ").replace("+00:00", " UTC"), datetime=created)
    print_button = tag("button", "Print", type="button", id="print")
    theme_button = tag("button", "Theme", type="button", id="theme", title="Switch between light and dark")
    return tag("header", name, created_at, print_button, theme_button, class_="top")


def _by_kind(items: list[_Item]) -> list[tuple[Section, list[tuple[int, _Item]]]]:
    groups: dict[str, list[tuple[int, _Item]]] = {}
    for number, item in enumerate(items, 1):
        groups.setdefault(item.section.KIND, []).append((number, item))
    return [(group[0][1].section, group) for group in groups.values()]


def _contents(items: list[_Item]) -> Html:
    def link(number: int, entry: Entry) -> Html:
        dot = tag("i", class_=f"dot {entry.headline.tone}")
        return tag(
            "li",
            tag(
                "a",
                dot,
                _short(entry.title),
                href=f"#r{number}",
                title=f"{entry.title}: {entry.headline.value}",
            ),
        )

    groups = [tag("li", tag("a", "Overview", href="#overview"))]
    for section, group in _by_kind(items):
        links = [link(number, item.entry) for number, item in group]
        groups.append(tag("li", tag("a", section.TITLE, href=f"#{section.KIND}"), tag("ul", *links)))
    return tag("nav", tag("ul", *groups), class_="contents", aria_label="Contents")


def _short(target: str) -> str:
    """The end of a long path, for places where the whole is a line below or in a tooltip."""
    parts = target.split("/")
    return target if len(parts) < 4 else f"…/{'/'.join(parts[-2:])}"


def _overview(items: list[_Item]) -> Html:
    cards = [
        tag(
            "a",
            tag("span", item.section.KIND, class_="kind"),
            tag("strong", item.entry.headline.value),
            tag("span", item.entry.headline.label, class_="label"),
            tag("span", _short(item.entry.title), class_="target", title=item.entry.title),
            tag("span", item.entry.headline.detail, class_="detail"),
            href=f"#r{number}",
            class_=f"card {item.entry.headline.tone}",
        )
        for number, item in enumerate(items, 1)
    ]
    counts = ", ".join(f"{len(group)} {section.NOUNS[len(group) > 1]}" for section, group in _by_kind(items))
    return tag(
        "section",
        tag("h1", "Overview"),
        tag("p", counts, class_="about"),
        tag("div", *cards, class_="cards"),
        id="overview",
    )


def _kinds(items: list[_Item], figures: list[dict[str, Any]]) -> list[Html]:
    return [
        tag(
            "section",
            tag("h2", section.TITLE),
            tag("p", section.ABOUT, class_="about"),
            *(_article(number, item, figures) for number, item in group),
            id=section.KIND,
            class_="kind",
        )
        for section, group in _by_kind(items)
    ]


def _article(number: int, item: _Item, figures: list[dict[str, Any]]) -> Html:
    entry = item.entry
    tags = tag("div", *(badge(text) for text in entry.tags if text), class_="chips")
    head = tag("div", tag("h3", entry.title), tags, class_="title")
    answer = entry.answer
    lead = banner(answer.tone, answer.text, answer.changes, note=entry.explanation)
    blocks = [
        block if isinstance(block, Html) else _figure(block, figures) for block in fill_rows(entry.blocks)
    ]
    body = tag("div", *blocks, class_="blocks")
    sources = [_provenance(name, record) for name, record in item.records]
    return tag("article", head, lead, tiles(entry.tiles), body, *sources, id=f"r{number}")


def fill_rows(blocks: Iterable[Html | Figure]) -> list[Html | Figure]:
    """Return the blocks with the whole width for every half that has no other half beside it."""
    rows: list[Html | Figure] = []
    waiting = False  # whether the last block is a half without a neighbour
    for block in blocks:
        half = block.half if isinstance(block, Figure) else is_half(block)
        if waiting and not half:
            rows[-1] = _whole(rows[-1])
        waiting = half and not waiting
        rows.append(block)
    if waiting:
        rows[-1] = _whole(rows[-1])
    return rows


def _whole(block: Html | Figure) -> Html | Figure:
    return replace(block, half=False) if isinstance(block, Figure) else full_width(block)


def _figure(figure: Figure, figures: list[dict[str, Any]]) -> Html:
    """Return an empty plot and append its data to `figures`, where the script finds it by its index."""
    number = str(len(figures))
    figures.append(figure.to_dict())
    head = tag(
        "figcaption", tag("h4", figure.title), tag("p", figure.note) if figure.note else None, class_="head"
    )
    entries = [_legend_entry(entry, number) for entry in figure.legend()]
    legend = tag("div", *entries, class_="keys") if entries else None
    height = f"height:{figure.height}px"
    canvas = tag("div", class_="plot", data_figure=number, style=height, role="img", aria_label=figure.title)
    return tag("figure", head, legend, canvas, class_="panel half" if figure.half else "panel")


def _legend_entry(entry: LegendEntry, number: str) -> Html:
    glyph = tag("span", entry.glyph, style=f"color:var(--{entry.role})", aria_hidden="true")
    data = {"data_figure": number, "data_name": entry.name}
    return tag("button", glyph, entry.name, type="button", class_="key", aria_pressed="true", **data)


def _provenance(name: str, record: Record) -> Html:
    data = record.to_dict()
    machine = {str(key): value for key, value in dict(data.get("machine") or {}).items()}
    versions = machine.pop("versions", None)
    facts = [
        ("created", data.get("created")),
        *machine.items(),
        *(versions.items() if isinstance(versions, dict) else ()),
    ]
    rows = [(str(key).replace("_", " "), value) for key, value in facts if value not in (None, "")]
    cells = [tag("div", tag("dt", key), tag("dd", value)) for key, value in rows]
    return folded_details(f"Provenance {name}".strip(), tag("dl", *cells, class_="facts"))


def _foot(created: str) -> Html:
    return tag(
        "footer",
        f"Created by pinchpoint at {created}. Units: GiB = 2^30 B, MiB = 2^20 B; sizes: k = 1,000, M ="
        " 1,000,000.",
    )


def _document(title: str, body: Html, figures: list[dict[str, Any]]) -> str:
    # plotly is a heavy import and only the page needs it.
    from plotly.offline import get_plotlyjs

    # A browser converts \r to \n before it computes the hash.
    scripts = [text.replace("\r\n", "\n").replace("\r", "\n") for text in (get_plotlyjs(), _asset("page.js"))]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline';"
        " img-src data: blob:; base-uri 'none'"
    )
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
    noscript = tag("noscript", tag("p", "The plots need JavaScript.", class_="quiet"))
    ending = join([noscript, data, *(Html(f"<script>{text}</script>") for text in scripts)])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}{ending}</body></html>\n'


def _json(value: Any) -> str:
    """Return JSON that cannot close the script element around it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return resources.files("pinchpoint.reporting").joinpath("assets", name).read_text(encoding="utf-8")
