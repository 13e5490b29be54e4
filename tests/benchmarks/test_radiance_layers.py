"""The comparison of two source trees: errors of bf16, and whose runs are timed in which order."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"


def test_errors_are_those_of_bf16() -> None:
    errors = importlib.import_module("layers").errors("cpu", "tiny", 2)
    assert 1e-4 < errors["median"] < 0.1 and errors["median"] <= errors["largest"] < 0.5


def test_trees_take_turns_and_every_block_is_written() -> None:
    script: Any = importlib.import_module("layers")
    calls: list[str] = []

    class Contender:
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        def ask(self, what: str, *, work: str = "", runs: int = 0) -> dict[str, Any]:
            if what == "time":
                calls.append(f"{work} {self.name}")
                return {"seconds": [self.seconds] * runs, "in_a_row_s": self.seconds / 2}
            return {"largest": self.seconds}

    record: dict[str, Any] = {}
    written: list[str] = []

    def write(new: dict[str, Any]) -> None:
        written.extend(new)
        record.update(new)

    trees = {"before": Contender("before", 3.0), "after": Contender("after", 2.0)}
    script.compare(trees, ["launched", "iteration"], blocks=3, runs=2, write=write)
    once = ["before", "after", "after", "before", "before", "after"]
    assert calls == [f"{work} {name}" for work in ("launched", "iteration") for name in once]
    assert written == ["errors", *["launched_ms"] * 3, *["iteration_ms", "iteration_in_a_row_ms"] * 3]
    assert record["errors"] == {"before": {"largest": 3.0}, "after": {"largest": 2.0}}
    assert record["launched_ms"]["before"] == {"median": 3e3, "low": 3e3, "high": 3e3, "runs": 6}
    assert record["launched_ms"]["speedup"] == pytest.approx((1.5, 1.5, 1.5))
    assert record["iteration_in_a_row_ms"]["after"]["median"] == 1e3
