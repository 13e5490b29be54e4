"""What forecasts cost: how seconds are counted, and what the record says."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "speed"
RECORD = FOLDER.parent / "results" / "speed_cpu.json"


@pytest.fixture(scope="module")
def speed() -> ModuleType:
    return importlib.import_module("run")


def test_an_import_is_not_counted_in_the_part_that_it_happens_in(
    speed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(speed, "cpu_s", lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    clock = speed.Clock()
    spend(1)
    nested = clock.importing(spend)
    clock.importing(lambda seconds: nested(seconds))(10)
    spend(2)
    clock.begin("steps")
    spend(4)
    clock.begin("replay")
    assert clock.seconds == {"imports": 10.0, "model": 3.0, "steps": 4.0, "replay": 0.0}


def test_the_record_has_every_case_and_meets_the_bars(speed: ModuleType) -> None:
    cases = json.loads(RECORD.read_text(encoding="utf-8"))["cases"]
    assert list(cases) == list(speed.CASES)
    for name, case in cases.items():
        total = sum(seconds for part, seconds in case["seconds"].items() if part != "imports")
        assert case["after_imports_s"] == pytest.approx(total, abs=0.02)
        assert case["bar_s"] is None or case["after_imports_s"] <= case["bar_s"], name
    assert len(speed.table_lines(cases)) == len(cases) + 2
