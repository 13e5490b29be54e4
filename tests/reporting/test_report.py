"""The report as text: its contents, what it refuses, and that nothing from a record becomes markup."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import pinchpoint.reporting.sections
from pinchpoint.cli.main import run
from pinchpoint.core.errors import BadInput
from pinchpoint.core.findings import Finding, Findings
from pinchpoint.core.records import Forecast, Line, Plan, Point, Record, Study, Verdict
from pinchpoint.reporting import palette
from pinchpoint.reporting import report as page_module
from pinchpoint.reporting.axes import exact_size, rounded_size, size_title
from pinchpoint.reporting.chart import Figure, symbol_of
from pinchpoint.reporting.html import is_half, panel, prose
from pinchpoint.reporting.modules import merged_modules
from pinchpoint.reporting.other_records import load_any
from pinchpoint.reporting.record_reader import shortlist
from pinchpoint.reporting.report import fill_rows, page, report
from pinchpoint.reporting.sections.forecast import thin

NASTY = """</script><script>hacked=1</script><img src=x onerror="hacked=1">'"&amp;%{x}<b>"""
Records = dict[str, Record]
ROOT = Path(__file__).parents[2]


class ParsedPage(HTMLParser):
    """Tags with their attributes, the text outside scripts, and each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words += data

    @property
    def figures(self) -> list[dict[str, Any]]:
        return json.loads(self.scripts[0])

    def figure(self, title: str) -> dict[str, Any]:
        places = [a for _, a in self.tags if a.get("data-figure") and a.get("aria-label") == title]
        return self.figures[int(places[0]["data-figure"] or "")]


def parse(*records: Record) -> ParsedPage:
    return ParsedPage(page(records, created="2026-03-01T12:00:00+00:00"))


def forecast_of(records: Records) -> Forecast:
    record = records["forecast"]
    assert isinstance(record, Forecast)
    return record


def study_of(records: Records) -> Study:
    record = records["study"]
    assert isinstance(record, Study)
    return record


def test_one_page_contains_every_kind_and_stays_below_eight_megabytes(
    report_records: Records, tmp_path: Path
) -> None:
    path = report(list(report_records.values()), tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    parsed = ParsedPage(text)
    ids = {attributes.get("id") for tag, attributes in parsed.tags if tag in ("section", "article")}
    assert {"overview", "forecast", "plan", "study", "verdict", *(f"r{i}" for i in range(1, 9))} <= ids
    assert path.stat().st_size < 8_000_000
    assert text.count("* plotly.js v") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_page_loads_nothing_from_outside(report_records: Records) -> None:
    text = page(report_records.values(), created="now")
    parsed = ParsedPage(text)
    assert not [t for t, _ in parsed.tags if t in ("link", "img", "iframe", "object", "base", "form")]
    for tag, attributes in parsed.tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")], tag
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(style) == 1
    assert not re.search(r"@import|url\(|https?:", style[0])


def test_the_policy_allows_exactly_the_scripts_of_the_page(report_records: Records) -> None:
    parsed = parse(report_records["verdict"])
    policy = next(
        a["content"] or ""
        for t, a in parsed.tags
        if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    named = set(re.findall(r"'(sha256-[^']+)'", policy))
    hashes = {
        "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in parsed.scripts[1:]
    }
    assert len(parsed.scripts) == 3  # the data, which is no program, then plotly.js and the page's own
    assert named == hashes
    assert "default-src 'none'" in policy


def nasty(records: Records) -> list[Record]:
    """Records in which every text that a user can provide is hostile."""
    forecast, study = forecast_of(records), study_of(records)
    plan, verdict = records["plan"], records["verdict"]
    assert isinstance(plan, Plan)
    assert isinstance(verdict, Verdict)
    return [
        replace(
            forecast,
            target=NASTY,
            variant=NASTY,
            notes=(NASTY,),
            fits={NASTY: True},
            card=NASTY,
            method=NASTY,
            lines=(Line(NASTY, 3, 10**9, NASTY, NASTY),),
            modules=({"name": NASTY, "bytes": 10**8},),
            timeline=((0, 5, NASTY), (1, 9, "forward")),
            machine={NASTY: NASTY, "versions": {NASTY: NASTY}},
            created=NASTY,
        ),
        replace(
            plan,
            target=NASTY,
            variant=NASTY,
            tried=(
                {"size": 5, "variant": NASTY, "total_bytes": 10**9, "fits": True},
                {"size": 7, "variant": NASTY, "total_bytes": 2 * 10**9, "fits": False},
            ),
            choices=({"variant": NASTY, "size": 5},),
            cards=({"card": NASTY, "size": 5, "variant": NASTY},),
            notes=(NASTY,),
        ),
        replace(
            study,
            target=NASTY,
            axis=NASTY,
            gate=(NASTY,),
            passed=False,
            notes=(NASTY,),
            laws=(),
            cards=(),
            points=(
                Point(8, NASTY, NASTY, "ok", peak_allocated_bytes=64),
                Point(9, NASTY, NASTY, "failed", reason=NASTY),
            ),
        ),
        replace(
            verdict,
            target=NASTY,
            reason=NASTY,
            where=NASTY,
            baseline=NASTY,
            variant=NASTY,
            notes=(NASTY,),
            comparisons=(
                {"name": NASTY, "what": NASTY, "error": 1e-3, "tolerance": 1e-5, "ok": False, "where": NASTY},
            ),
        ),
    ]


def test_text_from_a_record_is_shown_and_never_becomes_markup(report_records: Records) -> None:
    plain, hostile = parse(*report_records.values()), parse(*nasty(report_records))
    known = {tag for tag, _ in plain.tags} | {"noscript"}
    assert {tag for tag, _ in hostile.tags} <= known
    assert len(hostile.scripts) == 3
    assert hostile.scripts[1:] == plain.scripts[1:]
    assert Counter(t for t, _ in hostile.tags)["script"] == 3
    assert not [name for _, attributes in hostile.tags for name in attributes if name.startswith("on")]
    # 4 titles, headings in contents and overview, notes, code: all readable as written
    assert hostile.words.count(NASTY) > 40
    assert NASTY in next(
        a["title"] or "" for t, a in hostile.tags if t == "span" and (a.get("class") or "") == "place"
    )


def test_plotly_gets_hostile_text_with_its_angle_brackets_escaped(report_records: Records) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [
                t for key, item in value.items() if key not in ("name", "legendgroup") for t in texts(item)
            ]
        return (
            [t for item in value for t in texts(item)]
            if isinstance(value, list)
            else [value]
            if isinstance(value, str)
            else []
        )

    found = [text for text in texts(parse(*nasty(report_records)).figures) if "hacked" in text]
    assert found
    for text in found:
        assert re.findall(r"<[^>]*>", text.replace("<b>", "").replace("</b>", "").replace("<br>", "")) == []


def test_a_file_and_the_object_it_was_saved_from_give_the_same_page(
    report_records: Records, tmp_path: Path
) -> None:
    paths = [record.save(tmp_path / f"{name}.json") for name, record in report_records.items()]
    report(paths, tmp_path / "from_files.html")
    report(report_records.values(), tmp_path / "from_objects.html")
    made = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\+00:00| UTC)")
    first, second = (
        made.sub("", (tmp_path / f"from_{x}.html").read_text(encoding="utf-8")) for x in ("files", "objects")
    )
    assert first == second


def test_the_bar_of_a_forecast_adds_up_to_the_driver_total(report_records: Records) -> None:
    forecast = forecast_of(report_records)
    figure = parse(forecast).figure("Composition of the peak")
    rows = {row: sum(t["x"][0] for t in figure["data"] if t["y"] == [row]) for row in (0, 1)}
    assert rows[0] * 2**30 == pytest.approx(forecast.total_bytes, rel=1e-4)
    assert rows[1] * 2**30 == pytest.approx((forecast.measured or {})["total_bytes"], rel=1e-4)


def test_modules_and_library_lines_stand_under_their_source_line(report_records: Records) -> None:
    rows = page([report_records["forecast"]], created="now").split("<tr>")
    (at,) = [i for i, row in enumerate(rows) if "layers.*.mlp" in row]
    assert "model.py" in rows[at - 1] and "12 × 96.00 MiB" in rows[at] and "mlp.py" in rows[at]
    assert "outside modules" in rows[at + 1]


def test_the_timeline_keeps_its_peak_when_a_hundred_thousand_events_are_thinned(
    report_records: Records,
) -> None:
    rng = np.random.default_rng(0)
    heights = rng.integers(10**6, 10**9, 100_000)
    heights[61_803] = 2 * 10**9
    events = tuple((i, int(h), "forward" if i % 200 < 90 else "backward") for i, h in enumerate(heights))
    events_kept = thin(events, 700)
    assert len(events_kept) <= 710
    assert max(events_kept, key=lambda e: e[1]) == events[61_803]
    assert events_kept == sorted(events_kept)
    assert set(events_kept) <= set(events)
    assert len(page([replace(forecast_of(report_records), timeline=events)], created="")) < 8_000_000


def test_a_phase_covers_its_own_events_and_no_others(report_records: Records) -> None:
    figure = parse(forecast_of(report_records)).figure("Memory through the steps")
    areas = [t for t in figure["data"] if t.get("fill")]
    assert [t["name"] for t in areas] == ["data", "forward", "backward", "optimizer"]
    outline = next(t for t in figure["data"] if not t.get("fill"))
    assert np.sum([t["y"] for t in areas], axis=0) == pytest.approx(outline["y"])


def test_the_study_draws_its_points_its_law_its_crosses_and_its_cards(report_records: Records) -> None:
    study = study_of(report_records)
    figure = parse(study).figure("Peak vs points")
    done = [p for p in study.points if (p.variant, p.mode, p.status) == ("eager", "train", "ok")]
    marks = next(t for t in figure["data"] if t.get("name") == "eager, train")
    assert (marks["x"], marks["y"]) == ([p.size for p in done], [p.peak_allocated_bytes for p in done])
    lines = [t for t in figure["data"] if t.get("legendgroup") == "eager, train" and not t.get("name")]
    fit = next(t for t in lines if "fill" not in t)
    assert fit["y"][-1] == pytest.approx(
        3681 * done[-1].size + 92 * 2**20
    )  # the last segment's slope and intercept
    assert fit["y"][0] == pytest.approx(
        3681 * 0.97 * 5000 + 92 * 2**20 + 3681 * 0.03 * 40_000
    )  # the first one's
    crosses = next(t for t in figure["data"] if t.get("name") == "out of memory")
    assert list(zip(crosses["x"], crosses["y"], strict=True)) == [
        (p.size, p.theory_bytes) for p in study.points if p.status == "oom"
    ]
    assert [shape["y0"] for shape in figure["layout"]["shapes"]] == [
        4 * 2**30,
        12 * 2**30,
    ]  # those near the data


def test_a_flat_variant_does_not_stretch_the_axis_of_bytes_per_point(report_records: Records) -> None:
    study = study_of(report_records)
    laws = tuple(
        replace(law, slope_bytes_per_point=1e-12) if law.variant == "chunked" else law for law in study.laws
    )
    low, high = parse(replace(study, laws=laws)).figure("Bytes per point")["layout"]["yaxis"]["range"]
    least = min((p.peak_allocated_bytes or 0) / p.size for p in study.points if p.status == "ok")
    assert 10**low == pytest.approx(least, rel=0.6)
    assert 10**low < least < 10**high


def test_a_plan_shows_sizes_and_chunks_separately_with_the_best_run_of_each_size(
    report_records: Records,
) -> None:
    plan = report_records["plan"]
    assert isinstance(plan, Plan)
    chunks = [
        {
            "size": 9_000,
            "variant": "chunked",
            "chunk": chunk,
            "total_bytes": chunk * 2**20,
            "fits": chunk <= 300,
        }
        for chunk in (100, 200, 300, 400)
    ]
    parsed = parse(replace(plan, tried=(*plan.tried, *chunks)))
    by_chunk = parsed.figure("Chunks tried with size 9k")["data"]
    assert [trace["x"] for trace in by_chunk] == [[100, 200, 300, 400]]
    by_size = {trace["name"]: trace for trace in parsed.figure("Sizes tried")["data"]}
    assert by_size["chunked"]["x"].count(9_000) == 1
    assert by_size["chunked"]["y"][by_size["chunked"]["x"].index(9_000)] == 300 * 2**20
    assert by_size["chunked"]["marker"]["symbol"][-1] == "circle-x-open"  # 900M does not fit


def test_an_unknown_plan_names_the_possible_size_and_its_reasons(report_records: Records) -> None:
    plan = report_records["plan"]
    assert isinstance(plan, Plan)
    unknown = replace(
        plan,
        size=None,
        chunk=None,
        variant=None,
        choices=({"variant": None, "size": None},),
        axis="batch size",
        possible_size=48,
        reasons=("a device value decides when the loop at train.py:9 ends",),
        tried=tuple({**run, "variant": None, "chunk": None, "fits": None} for run in plan.tried),
        cards=(
            {"card": "t4", "budget_bytes": 15 * 2**30, "size": None, "how": "unknown", "possible_size": 12},
        ),
    )
    shown = parse(unknown)
    for words in ("unknown up to 12", "48 fits unless the peak is higher", "the loop at train.py:9"):
        assert words in shown.words
    (trace,) = shown.figure("Batch size tried")["data"]
    assert set(trace["marker"]["symbol"]) == {"circle-open"}


def test_a_long_list_of_cards_is_shortened_and_the_rest_is_folded() -> None:
    memory = {f"card{gib}": float(gib) for gib in range(6, 40)}
    names = shortlist(memory)
    assert names[0] == "card6"
    assert all(memory[b] >= 1.3 * memory[a] for a, b in itertools.pairwise(names))
    assert shortlist(dict(itertools.islice(memory.items(), 12))) == list(memory)[:12]


def test_sixty_four_variants_all_look_different() -> None:
    names = [f"v{i}" for i in range(64)]
    assert len({(palette.of_series(name, names), symbol_of(name, names)) for name in names}) == 64


def test_ratios_and_residuals_match_the_points(report_records: Records) -> None:
    study = study_of(report_records)
    points = {(p.variant, p.mode, p.size): p for p in study.points}
    parsed = parse(study)
    for trace in parsed.figure("Training vs inference")["data"]:
        for size, ratio in zip(trace["x"], trace["y"], strict=True):
            pair = [points[trace["name"], mode, size].peak_allocated_bytes for mode in ("train", "infer")]
            assert ratio == pytest.approx((pair[0] or 0) / (pair[1] or 1))
    for trace in parsed.figure("Residuals of theory")["data"]:
        variant, mode = trace["name"].split(", ")
        for size, percent in zip(trace["x"], trace["y"], strict=True):
            point = points[variant, mode, size]
            assert (point.theory_bytes or 0) * (1 + percent / 100) == pytest.approx(
                point.peak_allocated_bytes
            )


def test_a_study_on_fake_tensors_is_not_compared_with_theory(report_records: Records) -> None:
    assert "Theory vs measurement" in parse(report_records["study"]).words
    assert "Theory vs measurement" not in parse(report_records["fake"]).words


def test_a_study_without_measured_peaks_is_drawn_from_theory(report_records: Records) -> None:
    points = tuple(
        replace(p, peak_allocated_bytes=None, peak_reserved_bytes=None)
        for p in study_of(report_records).points
    )
    figure = parse(replace(study_of(report_records), points=points)).figure("Peak vs points")
    marks = next(t for t in figure["data"] if t.get("name") == "chunked, infer")
    assert marks["y"] == [p.theory_bytes for p in points if (p.variant, p.mode) == ("chunked", "infer")]


def test_a_failed_gate_and_a_failed_verdict_are_prominent(report_records: Records) -> None:
    gate, failed = parse(report_records["gate"]), parse(report_records["failed"])
    assert "size check failed" in gate.words
    assert "slope 0.0 B/point [-1.2, 1.4] contains zero" in gate.words
    assert ("div", {"class": "banner bad"}) in gate.tags
    assert "✗ fail" in failed.words
    assert "slow-down" in failed.words  # a ratio below 1 is never printed as a speed-up
    beyond = next(t for t in failed.figure("Errors")["data"] if t["name"] == "beyond")
    assert beyond["x"][0] == pytest.approx(0.031)
    assert len(beyond["x"]) == 2  # the one that is not a number is drawn too


def bare() -> list[Record]:
    """Records as empty as their classes allow."""
    return [
        Forecast(
            "t",
            "torch",
            "fake tensors",
            "train",
            None,
            None,
            0,
            None,
            0,
            0,
            0,
            {},
            (),
            (),
            (),
            {},
            0,
            "h200",
            1,
        ),
        Plan("t", "train", 1, None, None, None, 0, 0, ()),
        Study("t", "points", "fake", (), (), False, ("nothing ran",), complete=False),
        Study(
            "t",
            "points",
            "cpu",
            (Point(1, "train", "a", "oom"), Point(1, "train", "a", "ok", 1, 8)),
            (),
            False,
            (),
        ),
        Verdict("t", "train", 1, "a", "b", "inconclusive", "", None, ""),
        Verdict("t", "train", 1, "a", "b", "pass", "", 0.0, "", 1.0, None, None, 0, 0),
    ]


def test_empty_records_still_make_a_page() -> None:
    assert parse(*bare()).words.count("Provenance") == 6


def test_no_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no records"):
        report([], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def without(record: Record, key: str) -> str:
    return json.dumps({k: v for k, v in record.to_dict().items() if k != key})


def changed(record: Record, **values: Any) -> str:
    return json.dumps({**record.to_dict(), **values})


BROKEN = {
    "cut short": (lambda r: r["study"].to_json()[:999], "is not JSON"),
    "not text": (lambda r: b"\xff\xfe\x00", "is not JSON"),
    "a list": (lambda r: "[1, 2]", "not a pinchpoint record"),
    "no kind": (lambda r: without(r["plan"], "kind"), "not a pinchpoint record"),
    "a key missing": (lambda r: without(r["forecast"], "total_bytes"), "damaged forecast record"),
    "bytes as text": (
        lambda r: changed(r["forecast"], total_bytes="3 GiB"),
        "forecast.total_bytes should be a whole number",
    ),
    "a flag as bytes": (
        lambda r: changed(r["plan"], budget_bytes=True),
        "plan.budget_bytes should be a whole number",
    ),
    "no number": (
        lambda r: changed(r["verdict"], speedup=float("nan")),
        "verdict.speedup should be a number, not nan",
    ),
    "no such status": (
        lambda r: changed(r["verdict"], status="maybe"),
        "should be one of pass, fail, inconclusive",
    ),
    "points of text": (lambda r: changed(r["study"], points=["x"]), "damaged study record"),
    "law without slope": (lambda r: changed(r["study"], laws=[{"mode": "train"}]), "damaged study record"),
    "events too short": (lambda r: changed(r["forecast"], timeline=[[1, 2]]), "damaged forecast record"),
    "parts of text": (
        lambda r: changed(r["forecast"], breakdown={"weights": "x"}),
        "forecast.breakdown.weights should be",
    ),
    "runs of text": (lambda r: changed(r["plan"], tried=["x"]), r"plan.tried\[0\] should be an object"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_damaged_record_is_refused_by_name(fault: str, report_records: Records, tmp_path: Path) -> None:
    make, said = BROKEN[fault]
    path, text = tmp_path / "record.json", make(report_records)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=said) as raised:
        report([path], tmp_path / "report.html")
    assert "record.json" in raised.value.what
    assert raised.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_a_missing_file_a_folder_and_a_record_as_output_are_refused(
    report_records: Records, tmp_path: Path
) -> None:
    record = report_records["plan"].save(tmp_path / "plan.json")
    before = record.read_bytes()
    for records, output, said in (
        (tmp_path / "absent.json", "report.html", "Cannot read .*absent.json"),
        (tmp_path, "report.html", "Cannot read"),
        (record, "absent/report.html", "Cannot write"),
        (record, ".", "it is a folder"),
        (record, "plan.json", "is one of the records"),
    ):
        with pytest.raises(BadInput, match=said):
            report(records, tmp_path / output)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert record.read_bytes() == before


def test_a_page_over_the_limit_is_refused_and_not_written(
    report_records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "MAX_BYTES", 1_000_000)
    with pytest.raises(BadInput, match="The page would be"):
        report(report_records["plan"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Weather(Record):
    kind: ClassVar[str] = "weather"
    target: str = "sea"
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = ""

    def summary(self) -> list[tuple[str, str]]:
        return []


SECTION = """
from pinchpoint.reporting.answers import Answer
from pinchpoint.reporting.section import Entry, Headline
KIND, TITLE, ABOUT, ORDER = "weather", "Weather", "What it is like.", 50
def entry(record):
    return Entry(record.target, Headline("calm", "today"), Answer("plain", "It is calm."), (), (), ())
"""


def test_adding_a_section_is_adding_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "A record of the kind weather" in report(Weather(), tmp_path / "report.html").read_text("utf-8")
    (tmp_path / "weather.py").write_text(SECTION, encoding="utf-8")
    monkeypatch.setattr(
        pinchpoint.reporting.sections, "__path__", [*pinchpoint.reporting.sections.__path__, str(tmp_path)]
    )
    try:
        assert "What it is like." in report(Weather(), tmp_path / "report.html").read_text(encoding="utf-8")
    finally:
        sys.modules.pop("pinchpoint.reporting.sections.weather", None)


def test_the_command_writes_the_page_and_prints_errors_in_two_lines(
    report_records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(report_records[name].save(tmp_path / f"{name}.json")) for name in ("plan", "verdict")]
    assert run(["report", *paths, "-o", str(tmp_path / "report.html")]) == 0
    assert "report.html: 2 records" in capsys.readouterr().out
    assert run(["report", str(tmp_path / "absent.json"), "-o", str(tmp_path / "other.html")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("error: Cannot read")
    assert said[1].startswith("  hint: ")
    assert run(["report"]) == 2
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (7, "7"),
        (512_000, "512k"),
        (524_288, "524,288"),
        (4096, "4,096"),
        (13_200_000, "13.2M"),
        (1_320_000_000, "1.32G"),
    ],
)
def test_sizes_are_short_only_where_they_stay_exact(size: int | None, text: str) -> None:
    assert exact_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"), [(999.6, "1k"), (29_240, "29.2k"), (1_000_000, "1M"), (0, "0"), (87.4, "87.4")]
)
def test_sizes_from_a_law_are_shown_with_three_digits(size: float, text: str) -> None:
    assert rounded_size(size) == text


# Linear RGB as seen without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHT = {
    "usual": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def light_of(colour: str) -> np.ndarray:
    """Linear RGB of "#rrggbb"."""
    raw = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(raw <= 0.04045, raw / 12.92, ((raw + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIELAB (D65), where a distance of 2.3 is just noticeable."""
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = np.array(to_xyz) @ np.clip(light, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio."""
    darker, lighter = sorted(light_of(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return float((lighter + 0.05) / (darker + 0.05))


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_series_colours_stay_distinct_under_every_kind_of_colour_blindness(
    theme: dict[str, str], sight: str
) -> None:
    parsed = {role: lab(np.array(SIGHT[sight]) @ light_of(theme[role])) for role in palette.SERIES}
    apart = {
        (a, b): float(np.linalg.norm(parsed[a] - parsed[b])) for a, b in itertools.combinations(parsed, 2)
    }
    assert min(apart.values()) > 18, min(apart, key=lambda pair: apart[pair])


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_text_has_enough_contrast_on_every_background(theme: dict[str, str]) -> None:
    grounds = {
        "ink": ("page", "surface", "sunken"),
        "muted": ("page", "surface", "sunken"),
        "accent": ("page", "surface"),
    }
    grounds |= {tone: ("surface", f"{tone}-soft") for tone in ("good", "bad", "warn", "info")}
    for role, behind in grounds.items():
        for ground in behind:
            assert contrast(theme[role], theme[ground]) >= 4.5, (role, ground)
    assert set(palette.LIGHT) == set(palette.DARK)


def test_a_checkpointing_plan_shows_its_modules_and_the_code(samples: Records) -> None:
    text = page([samples["checkpointing"]], created="now")
    for part in ("blocks.0-1", "from torch.utils.checkpoint import checkpoint", "it is called with a cache"):
        assert part in text


def test_the_answer_and_the_memory_through_the_steps_come_first(report_records: Records) -> None:
    forecast = replace(forecast_of(report_records), card="rtx3050")
    words = parse(forecast).words
    order = (
        "It does not fit rtx3050",
        "chunk saves 2.38 GiB",
        "total on the card",
        "Memory through the steps",
        "Changes that lower the peak",
        "Source lines at the peak",
        "Modules at the peak",
        "Composition of the peak",
    )
    places = [words.index(text) for text in order]
    assert places == sorted(places)


def test_a_half_alone_in_its_row_gets_the_whole_width() -> None:
    def figure(title: str, *, half: bool = True) -> Figure:
        return Figure(title, (), {}, half=half)

    blocks = [figure("a"), figure("b"), figure("c"), figure("d", half=False), panel("e", half=True)]
    widths = [
        "half" if (block.half if isinstance(block, Figure) else is_half(block)) else "whole"
        for block in fill_rows(blocks)
    ]
    assert widths == ["half", "half", "whole", "whole", "whole"]


@pytest.mark.parametrize(
    ("axis", "title"), [("points", "number of points"), ("size", "size"), ("batch size", "batch size")]
)
def test_an_axis_of_sizes_says_what_it_counts(axis: str, title: str) -> None:
    assert size_title(axis) == title


def test_the_size_check_is_explained_where_it_is_named(report_records: Records) -> None:
    for name in ("study", "gate"):
        assert "whether every run processed as many points as requested" in parse(report_records[name]).words


def test_repeated_layers_are_one_row_and_what_a_module_holds_itself_is_named() -> None:
    modules = [
        {"name": "GPT.blocks.*.mlp.0", "count": 11, "bytes": 1100},
        {"name": "GPT.blocks.8.mlp.0", "count": 1, "bytes": 130},
        {"name": "GPT.blocks.*", "count": 12, "bytes": 50},
        {"name": "GPT.features.*", "count": 3, "bytes": 30},
        {"name": "GPT.features.7", "count": 1, "bytes": 20},  # another layer of the same sequence
        {"name": "", "count": 1, "bytes": 5},
    ]
    assert [(module.label, module.bytes) for module in merged_modules(modules)] == [
        ("blocks.*.mlp.0 (12 ×)", 1230),
        ("blocks.* (itself) (12 ×)", 50),
        ("features.* (3 ×)", 30),
        ("features.7", 20),
        ("outside modules", 5),
    ]


def test_layers_of_several_sizes_are_one_row_that_loses_none() -> None:
    modules = [
        {"name": "GPT.blocks.*.mlp.0", "count": 7, "bytes": 700},
        {"name": "GPT.blocks.*.mlp.0", "count": 3, "bytes": 330},
        {"name": "GPT.blocks.3.mlp.0", "count": 1, "bytes": 120},
        {"name": "GPT.blocks.*.norm", "count": 3, "bytes_each": 33, "bytes": 101},
        {"name": "GPT.blocks.*.bias", "count": 2, "bytes_each": 5, "bytes": 10},
        {"name": "GPT.head", "count": 1, "bytes": 9},
    ]
    rows = [(module.name, module.count, module.bytes, module.equal) for module in merged_modules(modules)]
    assert rows == [
        ("blocks.*.mlp.0", 11, 1150, False),
        ("blocks.*.norm", 3, 101, False),
        ("blocks.*.bias", 2, 10, True),
        ("head", 1, 9, True),
    ]


def test_code_in_a_sentence_is_set_as_code_and_stays_text() -> None:
    assert prose("use `a<b>` here") == "use <code>a&lt;b&gt;</code> here"
    assert prose("an odd ` <i>") == "an odd ` &lt;i&gt;"


def test_few_cards_around_the_limit_are_shown_and_the_rest_is_folded(report_records: Records) -> None:
    fits = {f"card{i}": i >= 20 for i in range(40)}
    text = page([replace(forecast_of(report_records), fits=fits, card="card39")], created="now")
    shown = text[text.index("<h4>Cards</h4>") : text.index("all 40 cards, by memory")]
    names = re.findall(r"card\d+", shown)
    assert names == [f"card{i}" for i in (16, 17, 18, 19, 20, 21, 22, 23, 39)]


def test_findings_of_scan_are_a_section(tmp_path: Path) -> None:
    finding = Finding("PP101", "sync-in-loop", "train.py", 7, 1, "`x.item()` waits.", "Wait <less>.", True)
    path = tmp_path / "findings.json"
    path.write_text(Findings((finding, replace(finding, line=9)), files=1).to_json(), encoding="utf-8")
    text = report(path, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "2 places to look at; 2 can be fixed" in text and "PP101 sync-in-loop: 2 places" in text
    assert "<code>x.item()</code> waits." in text and "Wait &lt;less&gt;." in text
    path.write_text('{"findings": []}', encoding="utf-8")
    assert "scan found nothing." in report(path, tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_record_of_a_system_is_shown_as_its_values_and_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    data = {"kind": "cloud-training", "schema": 1}
    values = {
        "run": "rooms",
        "peak_bytes": 2**20,
        "step_s": 0.5,
        "scores": [{"loss": 1.25}],
        "sizes": list(range(20)),
    }
    path.write_text(json.dumps({**data, **values}), encoding="utf-8")
    words = ParsedPage(report(path, tmp_path / "r.html").read_text(encoding="utf-8")).words
    for part in ("cloud-training", "rooms", "1.00 MiB", "500.00 ms", "scores[0].loss", "and 12 more"):
        assert part in words
    with pytest.raises(BadInput, match="cannot be compared"):
        report([path, path], tmp_path / "c.html", compare=True)


def test_a_bench_has_charts_of_times_and_peaks_for_each_case() -> None:
    file = ROOT / "benchmarks" / "results" / "bench_h200" / "cloud.json"
    record = load_any(file)
    parsed = parse(record)
    stored = json.loads(file.read_text(encoding="utf-8"))
    for case in stored["comparisons"]:
        times = parsed.figure(f"Times of {case['case']}")
        timed = [row for row in case["rows"] if row["seconds"]]
        assert [trace["x"] for trace in times["data"]] == [[row["seconds"]] for row in timed]
        for trace, row in zip(times["data"], timed, strict=True):
            reach = trace["error_x"]
            assert row["seconds"] + reach["array"][0] == pytest.approx(row["seconds_high"])
            assert row["seconds"] - reach["arrayminus"][0] == pytest.approx(row["seconds_low"])
        assert case["claim"] in parsed.words
    fastest = max(
        row["ratio"] for row in stored["comparisons"][0]["rows"] if row["role"] == "variant" and row["ratio"]
    )
    assert f"{fastest:,.0f}x" in parsed.words


def test_a_bench_without_the_parts_of_its_charts_is_shown_as_values(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text('{"kind": "bench", "schema": 1, "system": "mine", "comparisons": [3]}', encoding="utf-8")
    assert "A record of the kind bench" in parse(load_any(path)).words


def test_the_overview_counts_records_in_plain_english(samples: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "findings.json").write_text('{"findings": []}', encoding="utf-8")
    (tmp_path / "mine.json").write_text('{"kind": "mine", "schema": 1}', encoding="utf-8")
    records = [load_any(tmp_path / f"{name}.json") for name in ("findings", "mine")]
    words = parse(*records, samples["verdict"], samples["trace"], samples["trace"]).words
    assert "1 verdict, 2 profiles" in words or "2 profiles, 1 verdict" in words
    assert "1 file of findings" in words and "1 other record" in words
