"""`pinchpoint list`: tables for people and JSON for programs."""

from __future__ import annotations

import json

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.discovery import find_workloads
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting.cards import cards


def test_cards_are_listed_with_memory_workspace_and_context(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "cards"]) == 0
    rows = capsys.readouterr().out.splitlines()
    h200 = next(row for row in rows if row.startswith("h200 "))
    for part in (
        "H200 141 GB",
        "139.72 GiB",
        "9.0",
        "32.00 MiB",
        f"{show_bytes(cards()['h200'].context_bytes)} *",
    ):
        assert part in h200
    assert len(rows) == len(cards()) + 1


def test_cards_as_json_have_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "cards", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(listed) == set(cards())
    assert listed["rtx4090"]["memory_bytes"] == cards()["rtx4090"].memory_bytes


def test_workloads_are_listed_with_their_axis_and_variants(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "workloads"]) == 0
    out = capsys.readouterr().out
    for workload in find_workloads()[0].values():
        row = next(line for line in out.splitlines() if line.startswith(workload.name + " "))
        assert workload.axis in row
        assert all(variant.name in row for variant in workload.variants)


def test_settings_are_listed_with_their_default_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "workloads"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert next(r for r in rows if r[1:2] == ["part"])[:6] == [
        "operator",
        "part",
        "encoder",
        "encoder,",
        "decoder,",
        "full",
    ]
    assert any(row[:3] == ["operator", "mlp", "128,128,128"] for row in rows)


def test_workloads_as_json_name_their_build_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "workloads", "--json"]) == 0
    for entry in json.loads(capsys.readouterr().out):
        assert entry["build"].startswith(("pinchpoint.workloads.", "pinchpoint.systems."))


def test_rules_are_listed_with_number_name_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "rules"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert next(row for row in rows if row.startswith("PP403")).split()[:3] == [
        "PP403",
        "created-on-host",
        "safe",
    ]
    assert run(["list", "rules", "--json"]) == 0
    listed = {entry["rule"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["PP101"]["name"] == "sync-in-loop"
    assert listed["PP101"]["family"] == "waits"


def test_an_unknown_list_is_refused_with_the_known_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "gpus"]) == 2
    assert (
        capsys.readouterr().err
        == "error: There is no list of 'gpus'.\n  hint: Use one of: workloads, cards, rules.\n"
    )


def test_workloads_are_listed_in_lines_a_person_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "workloads"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 140
    for workload in find_workloads()[0].values():
        assert f"{workload.name}: {workload.about}" in lines
