"""The accuracy table's judgement: what it must refuse."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "accuracy"


@pytest.fixture(scope="module")
def entries() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("entries")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def table(entries: ModuleType) -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy_table", FOLDER / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sides(entries: ModuleType, *, allocated: dict[str, float] | None = None, reserved: dict[str, float] | None = None) -> Any:
    """Measured 1 GB allocated and 1.1 GB reserved everywhere; predictions off by the given relative errors."""
    predicted: dict[str, Any] = {"cases": {}}
    measured: dict[str, Any] = {"cases": {}}
    for name, _, size in entries.chosen(None):
        key = entries.key(name, size)
        predicted["cases"][key] = {
            "status": "ok",
            "peak_allocated_bytes": round(10**9 * (1 + (allocated or {}).get(name, 0.0))),
            "peak_reserved_bytes": round(11 * 10**8 * (1 + (reserved or {}).get(name, 0.0))),
        }
        caps = {"cap_1.02": {"ran": True}, "cap_0.98": {"ran": False}}
        measured["cases"][key] = {"status": "ok", "peak_allocated_bytes": 10**9, "peak_reserved_bytes": 11 * 10**8, **caps}
    return predicted, measured


def missed(table: ModuleType, predicted: Any, measured: Any) -> list[str]:
    return [bar.name for bar in table.judge(table.rows_of(predicted, measured)) if not bar.met]


def test_exact_predictions_meet_every_bar(table: ModuleType, entries: ModuleType) -> None:
    assert missed(table, *sides(entries)) == []


def test_a_run_out_of_memory_above_the_predicted_boundary_is_refused(table: ModuleType, entries: ModuleType) -> None:
    predicted, measured = sides(entries)
    measured["cases"]["unet@64"]["cap_1.02"] = {"ran": False}
    assert missed(table, predicted, measured) == ["runs with the predicted reserved + 2 %"]


def test_a_boundary_that_was_never_tried_is_refused(table: ModuleType, entries: ModuleType) -> None:
    predicted, measured = sides(entries)
    del measured["cases"]["unet@64"]["cap_1.02"]
    assert missed(table, predicted, measured) == ["runs with the predicted reserved + 2 %"]


def test_one_model_six_percent_off_is_refused_whatever_the_sign(table: ModuleType, entries: ModuleType) -> None:
    for error in (0.06, -0.06):
        assert missed(table, *sides(entries, allocated={"cnn": error})) == ["allocated within 5 % for all"]


def test_three_of_nineteen_models_may_be_two_percent_off_and_a_fourth_may_not(table: ModuleType, entries: ModuleType) -> None:
    names = list(entries.MODELS)[:4]  # 19 models: 10 of 12 is 15.8, so 16 must be within 1 %
    assert missed(table, *sides(entries, allocated=dict.fromkeys(names[:3], 0.02))) == []
    assert missed(table, *sides(entries, allocated=dict.fromkeys(names, 0.02))) == ["allocated within 1 % for 10 of 12"]


def test_reserved_eleven_percent_off_is_refused(table: ModuleType, entries: ModuleType) -> None:
    assert missed(table, *sides(entries, reserved={"mlp": -0.11})) == ["reserved within 10 % for all"]


def test_a_failed_measurement_counts_against_every_bar_but_the_count(table: ModuleType, entries: ModuleType) -> None:
    predicted, measured = sides(entries)
    measured["cases"]["mlp@60000"] = {"status": "failed", "reason": "segmentation fault"}
    refused = missed(table, predicted, measured)
    assert refused == [
        "allocated within 5 % for all", "reserved within 10 % for all", "runs with the predicted reserved + 2 %",
    ]  # fmt: skip
    text = table.markdown(table.rows_of(predicted, measured), table.judge(table.rows_of(predicted, measured)), {})
    assert "mlp at 60,000, measured: segmentation fault" in text


def test_the_table_prints_the_worst_error_first(table: ModuleType, entries: ModuleType) -> None:
    rows = table.rows_of(*sides(entries, allocated={"gpt": -0.03, "cnn": 0.02}))
    lines = [line for line in table.markdown(rows, [], {}).splitlines() if "%" in line and "@" not in line][1:]
    assert [line.split(" | ")[0] for line in lines[:4]] == ["| gpt", "| gpt", "| cnn", "| cnn"]
    assert "-3.00 %" in lines[0]


def test_every_model_is_a_plain_factory_that_knows_nothing_of_pinchpoint(entries: ModuleType) -> None:
    for name, entry in entries.MODELS.items():
        path, _, factory = entry.target.rpartition(":")
        source = Path(path).read_text(encoding="utf-8")
        found = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        assert [arg.arg for arg in found[factory].args.args] == ["size", "device"], name
        assert "pinchpoint" not in source, name
        assert entry.sizes[0] < entry.sizes[1], name
