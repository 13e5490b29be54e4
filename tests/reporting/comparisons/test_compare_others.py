"""Two records of the other kinds compared, the page of a comparison, and the command with its limits."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint import compare, report
from pinchpoint.cli.main import run
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import KINDS

MIB = 2**20


def test_two_studies_are_compared_by_law_common_size_and_card(report_records: dict[str, Any]) -> None:
    before = report_records["study"]
    law = before.laws[0]
    doubled = replace(law, slope_bytes_per_point=2 * law.slope_bytes_per_point)
    points = tuple(
        replace(p, peak_allocated_bytes=2 * p.peak_allocated_bytes, size=p.size + (p.mode == "infer"))
        for p in before.points
        if p.peak_allocated_bytes
    )
    comparison = compare(
        before, replace(before, laws=(doubled, *before.laws[1:]), points=points, passed=False)
    )
    assert comparison.growth == 1.0
    tables = {table.title: table for table in comparison.tables}
    assert tables["Growth laws"].rows[0].cells() == ("3,681.0 B", "7,362.0 B", "+3,681.0 B", "+100 %")
    common = tables["Peak at the sizes of both studies"].rows
    assert {row.growth for row in common} == {1.0} and all("train" in row.name for row in common)
    assert comparison.conclusion[0] == "The size check no longer passes."


def test_two_verdicts_and_two_plans_are_compared(report_records: dict[str, Any]) -> None:
    verdict = report_records["verdict"]
    after = replace(verdict, status="fail", reason="the values differ", peak_after_bytes=2 * 46_137_344)
    comparison = compare(verdict, after)
    assert comparison.conclusion == ("The verdict changes from pass to fail: the values differ.",)
    assert comparison.failures(max_growth=0.99) and not comparison.failures(max_growth=1.0)
    plan = report_records["plan"]
    comparison = compare(plan, replace(plan, size=410_000_000))
    assert comparison.conclusion == ("The largest size that fits changes from 820M to 410M.",)
    with pytest.raises(BadInput, match="no peaks to compare"):
        comparison.failures(max_growth=0.05)


def test_two_traces_name_what_is_gone_and_what_is_new(samples: dict[str, Any]) -> None:
    trace = samples["trace"]
    problem = trace.problems[0]
    after = replace(
        trace,
        problems=(replace(problem, what="Another thing."),),
        step_times={**trace.step_times, "median_s": trace.step_times["median_s"] / 2},
    )
    comparison = compare(trace, after)
    assert "2.00x" in comparison.conclusion[0]
    assert {title for title, _ in comparison.lists} == {"New", "Gone"}
    assert "Another thing." in dict(comparison.lists)["New"][0]


def test_every_kind_of_record_has_a_page_of_its_comparison(
    samples: dict[str, Any], report_records: dict[str, Any], tmp_path: Path
) -> None:
    records = {**samples, **{record.kind: record for record in report_records.values()}}
    assert set(records) == set(KINDS)
    for kind, record in records.items():
        page = report([record, record], tmp_path / f"{kind}.html", compare=True)
        text = page.read_text(encoding="utf-8")
        assert "Provenance before" in text and "Provenance after" in text


def test_the_page_draws_both_timelines_in_one_plot(report_records: dict[str, Any], tmp_path: Path) -> None:
    before = report_records["forecast"]
    after = replace(before, timeline=tuple((i, size // 2, phase) for i, size, phase in before.timeline))
    text = report([before, after], tmp_path / "c.html", compare=True).read_text(encoding="utf-8")
    figures = json.loads(re.findall(r'id="figures">(.*?)</script>', text)[0])
    lines = figures[0]["data"]
    assert [line["name"] for line in lines] == ["before", "after"]
    assert max(lines[0]["y"]) == pytest.approx(2 * max(lines[1]["y"]), rel=1e-4)
    assert (min(lines[0]["x"]), max(lines[0]["x"])) == (0, 100)


def test_a_comparison_needs_two_records_of_one_kind(report_records: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="two records, but 1"):
        report([report_records["plan"]], tmp_path / "c.html", compare=True)
    with pytest.raises(BadInput, match="Cannot compare a plan with a study"):
        report([report_records["plan"], report_records["study"]], tmp_path / "c.html", compare=True)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_tables_writes_both_files_and_exits_with_1_above_a_limit(
    report_records: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = report_records["forecast"]
    after = replace(before, peak_allocated_bytes=before.peak_allocated_bytes * 11 // 10, high_bytes=None)
    paths = [str(record.save(tmp_path / f"{i}.json")) for i, record in enumerate((before, after))]
    page, markdown = tmp_path / "c.html", tmp_path / "c.md"
    args = ["report", *paths, "--compare", "-o", str(page), "--markdown", str(markdown)]
    assert run([*args, "--max-growth", "20%", "--card", "rtx3060"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("The predicted peak grows by") and "total on the card" in shown.out
    assert page.stat().st_size > 10**6 and markdown.read_text().startswith("The predicted peak grows")
    assert run([*args, "--max-growth", "5%", "--card", "rtx3050"]) == 1
    assert markdown.read_text().startswith("> **The peak allocated grows by 10.0 %")
    assert "It does not fit rtx3050." in capsys.readouterr().out
    assert run([*args, "--max-growth", "five"]) == 2
    assert run(["report", *paths, "-o", str(page), "--max-growth", "5%"]) == 2
    assert "is for comparisons" in capsys.readouterr().err


def test_cards_with_the_same_change_share_a_row(report_records: dict[str, Any], tmp_path: Path) -> None:
    before = report_records["forecast"]
    fits = {**before.fits, "gtx1060": True, "rtx3050": True, "h200": None}
    text = report([before, replace(before, fits=fits)], tmp_path / "c.html", compare=True).read_text("utf-8")
    rows = text[text.index("Cards with another answer") :].split("</table>")[0].split("<tr>")[2:]
    assert ["gtx1060" in row and "rtx3050" in row for row in rows] == [True, False]
    assert "h200" in rows[1] and "? unknown" in rows[1]
