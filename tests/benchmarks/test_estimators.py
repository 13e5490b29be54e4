"""Comparisons with other estimators: how answers are judged, and what the records say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "estimators"
RESULTS = FOLDER.parent / "results"


@pytest.fixture(scope="module")
def xmem() -> ModuleType:
    return importlib.import_module("xmem")


def run(peak: int, *, oom: bool = False, xmem: int = 100) -> dict[str, Any]:
    return {
        "nvml_bytes": peak,
        "out_of_memory": oom,
        "estimates": {"xmem": xmem},
        "says_out_of_memory": {"xmem": False},
    }


def test_errors_count_only_runs_that_did_not_run_out_of_memory(xmem: ModuleType) -> None:
    rows = [
        xmem.judge(run(100), {"total_bytes": 104, "fits": True}),
        xmem.judge(run(100), {"total_bytes": 90, "fits": None}),
        xmem.judge(run(100, oom=True), {"total_bytes": 300, "fits": False}),
    ]
    ours = xmem.summary(rows, "pinchpoint")
    assert (ours["runs"], ours["with_peak"]) == (3, 2)
    assert ours["median_error"] == pytest.approx(0.07)
    assert ours["within_5_percent"] == 0.5
    assert (ours["wrong_fits"], ours["unknown"], ours["too_low"]) == (0, 1, 1)


def test_a_fit_that_ran_out_of_memory_is_wrong_and_an_unknown_one_is_not(xmem: ModuleType) -> None:
    answers = [xmem.judge(run(1, oom=True), {"total_bytes": 1, "fits": says}) for says in (True, False, None)]
    with_peak = xmem.judge(run(1), {"total_bytes": 1, "fits": False})
    ours = xmem.summary([*answers, with_peak], "pinchpoint")
    assert (ours["wrong_fits"], ours["wrong_does_not_fit"]) == (1, 1)
    assert xmem.summary([*answers, with_peak], "xmem")["wrong_fits"] == 3


def test_the_published_runs_are_on_both_cards_and_can_be_rebuilt(xmem: ModuleType) -> None:
    case = importlib.import_module("xmem_case")
    listed = xmem.read_runs()
    assert len(listed["runs"]) >= 60
    assert {one["card"] for one in listed["runs"]} == {"rtx3060", "rtx4060"}
    names = {one["model"] for one in (*listed["runs"], *listed["check"])}
    assert names <= {*case.CNNS, *case.LANGUAGE_MODELS}
    assert any(one["out_of_memory"] for one in listed["runs"])


def test_the_record_of_the_published_runs_beats_xmem_and_has_no_wrong_fit() -> None:
    record = json.loads((RESULTS / "xmem_cards.json").read_text(encoding="utf-8"))
    ours, theirs = record["summary"]["pinchpoint"], record["summary"]["xmem"]
    assert ours["median_error"] < theirs["median_error"]
    assert ours["wrong_fits"] == 0
    assert ours["with_peak"] == theirs["with_peak"]


def test_the_record_of_five_models_is_right_to_one_percent() -> None:
    record = json.loads((RESULTS / "peers_h200.json").read_text(encoding="utf-8"))
    for name, case in record["models"].items():
        truth = case["measured"]["allocated_bytes"]
        assert abs(case["pinchpoint"]["allocated_bytes"] / truth - 1) < 0.01, name
