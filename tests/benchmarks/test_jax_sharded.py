"""The comparison of one JAX device of eight: what counts as missed, and what the record says."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "jax_sharded"
RECORD = FOLDER.parent / "results" / "jax_sharded_h200.json"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return importlib.import_module("run")


def _write(path: Path, **case: Any) -> Path:
    path.write_text(json.dumps({"cases": {"ring": case}}))
    return path


@pytest.mark.parametrize(("high", "code"), [(90, 1), (110, 0)])
def test_a_peak_outside_the_interval_is_a_miss(
    benchmark: ModuleType, tmp_path: Path, high: int, code: int
) -> None:
    predicted = _write(tmp_path / "p.json", peak_allocated_bytes=85, low_bytes=60, high_bytes=high)
    measured = _write(tmp_path / "m.json", peak_allocated_bytes=100)
    assert benchmark.table(predicted, None, measured, tmp_path / "record.json") == code


def test_every_measured_peak_of_the_record_is_inside_its_intervals() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    peaks = {
        name: case["peak_allocated_bytes"]
        for name, case in record["measured"]["cases"].items()
        if "peak_allocated_bytes" in case
    }
    assert peaks
    outside = [
        (method, name)
        for method, cases in record["predicted"].items()
        for name, peak in peaks.items()
        if not cases[name]["low_bytes"] <= peak <= cases[name]["high_bytes"]
    ]
    assert outside == []
