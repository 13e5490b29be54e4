"""The page of the forecasts by version of torch, and the record it is made from."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from pinchpoint.backends.torch import versions

FOLDER = Path(__file__).parents[2] / "benchmarks" / "versions"
RECORD = FOLDER.parent / "results" / "torch_versions.json"
MIB = 2**20


def test_the_page_has_a_column_per_version_and_names_errors() -> None:
    table = importlib.import_module("table")
    record = {
        "created": "today",
        "versions": {
            "2.6.0": {
                "tests": {"passed": 9, "skipped": 1},
                "cases": {"a_step": {"h200": {"peak_allocated_bytes": 3 * MIB}}},
            },
            "2.7.1": {"tests": {"passed": 8, "failed": 2}, "cases": {"a_step": {"h200": {"error": "no"}}}},
        },
    }
    lines = table.page(record).splitlines()
    assert "| step | card | 2.6.0 | 2.7.1 |" in lines
    assert "| tests | | 9 / 0 / 1 | 8 / 2 / 0 |" in lines
    assert "| a step | h200 | 3.0 | error |" in lines


def test_the_record_has_every_supported_version_without_a_failure() -> None:
    entries = json.loads(RECORD.read_text(encoding="utf-8"))["versions"]
    assert {versions.number(version) for version in entries} == set(versions.TABLE)
    for version, entry in entries.items():
        assert versions.number(entry["torch"]) == versions.number(version)
        assert entry["failures"] == [] and entry["tests"]["passed"] > 50
        assert not any("error" in answer for cards in entry["cases"].values() for answer in cards.values())
