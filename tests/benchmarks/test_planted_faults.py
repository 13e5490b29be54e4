"""The planted-fault table: how faults are counted, and that the docs show what was measured."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from pinchpoint.core.records import Check, Record

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "checking"
RESULT = ROOT / "benchmarks" / "results" / "planted_faults_h200.json"
ON_A_CPU = RESULT.with_name("planted_faults_cpu.json")


@pytest.fixture(scope="module")
def planted_faults() -> ModuleType:
    return importlib.import_module("planted_faults")


def test_a_fault_is_found_only_by_its_rule_at_its_statement(
    planted_faults: ModuleType, samples: dict[str, Record]
) -> None:
    text = "f(\n    loss.item()\n)  # fault: sync-in-loop\ng()  # fault: sync-in-loop, graph-kept\n"
    faults = planted_faults.planted(text)
    assert faults == [(1, 3, "sync-in-loop"), (4, 4, "sync-in-loop"), (4, 4, "graph-kept")]
    check = samples["check"]
    assert isinstance(check, Check)
    wait = check.advice[0]
    result = replace(check, advice=(replace(wait, line=2), replace(wait, line=9)))
    counted = planted_faults.compare(faults, result)
    assert (counted["planted"], counted["found"], counted["measured"]) == (3, 1, 1)
    assert counted["missed"] == ["sync-in-loop in line 4", "graph-kept in line 4"]
    assert counted["others"] == ["sync-in-loop in line 9: `loss.item()` waits."]


def test_the_docs_show_the_recorded_table_and_it_is_that_of_the_examples(planted_faults: ModuleType) -> None:
    record = json.loads(RESULT.read_text(encoding="utf-8"))
    assert planted_faults.table(record) in (ROOT / "docs/toolkit/check.md").read_text(encoding="utf-8")
    assert planted_faults.is_perfect(record)
    on_a_cpu = json.loads(ON_A_CPU.read_text(encoding="utf-8"))
    assert planted_faults.is_perfect(on_a_cpu)
    measured = sum(row["slow"]["measured"] for row in on_a_cpu["scripts"].values())
    assert f"{measured} faults have a measured one" in (ROOT / "docs/toolkit/check.md").read_text(
        encoding="utf-8"
    )
    for name, row in record["scripts"].items():
        text = (ROOT / "examples" / "slow" / f"{name}.py").read_text(encoding="utf-8")
        assert row["slow"]["planted"] == len(planted_faults.planted(text))


def test_a_missed_fault_or_a_false_alarm_is_not_perfect(planted_faults: ModuleType) -> None:
    for kind, key in (("slow", "missed"), ("fast", "others"), ("fast", "error")):
        record = json.loads(RESULT.read_text(encoding="utf-8"))
        record["scripts"]["image_gan"][kind][key] = ["something"]
        assert not planted_faults.is_perfect(record)
