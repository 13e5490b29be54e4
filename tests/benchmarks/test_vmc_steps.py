"""Steps of two source trees are timed in turn, and the ratio is that of their medians."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vmc"


def test_trees_take_turns_and_the_first_rounds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: Any = importlib.import_module("steps")
    calls: list[str] = []

    class Worker:
        def __init__(self, case: str, tree: Path, device: str) -> None:
            self.name, self.turn = tree.name, 0
            self.about = {"compile_s": 1.0, "temp_bytes": 7, "device": "H200"}

        def wait(self, seconds: float | None = None) -> None:
            calls.append(f"wait {self.name}")

        def seconds(self) -> float:
            calls.append(self.name)
            self.turn += 1
            return 100.0 if self.turn <= 2 else {"old": 3.0, "new": 2.0}[self.name]

        def close(self) -> None:
            calls.append(f"close {self.name}")

    monkeypatch.setattr(steps, "Worker", Worker)
    workers = steps.start("h2", {"before": Path("old"), "after": Path("new")}, "cpu")
    row = steps.compare("h2", workers, steps.wait("h2", workers), warm=False)
    rounds = steps.CASES["h2"]["rounds"] + 2
    assert calls == ["wait old", "wait new", *["old", "new"] * rounds, "close old", "close new"]
    assert row["trees"]["before"]["seconds"] == 3.0 and row["trees"]["after"]["runs"] == rounds - 2
    assert row["before_over_after"][0] == pytest.approx(1.5)


def test_a_tree_whose_process_ends_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: Any = importlib.import_module("steps")

    class Worker:
        def __init__(self, case: str, tree: Path, device: str) -> None:
            self.name, self.about, self.turn = tree.name, {"device": "H200"}, 0

        def wait(self, seconds: float | None = None) -> None:
            if self.name == "never":
                raise steps.Ended("ended with 3")

        def seconds(self) -> float:
            self.turn += 1
            if self.name == "late" and self.turn > 4:
                raise steps.Ended("ended with 9")
            return 2.0

        def close(self) -> None:
            assert self.name not in ("never", "late")

    monkeypatch.setattr(steps, "Worker", Worker)
    trees = {"before": Path("old"), "after": Path("never"), "other": Path("late"), "fast": Path("new")}
    workers = steps.start("h2", trees, "cpu")
    row = steps.compare("h2", workers, steps.wait("h2", workers), warm=False)
    assert row["failures"] == {"after": "ended with 3", "other": "ended with 9"}
    assert set(row["trees"]) == {"before", "fast"}
    assert row["before_over_fast"][0] == pytest.approx(1.0) and "before_over_after" not in row


def test_a_process_that_fails_is_noticed(tmp_path: Path) -> None:
    steps: Any = importlib.import_module("steps")
    (tmp_path / "jax.py").write_text("raise SystemExit(3)")
    worker = steps.Worker("h2", tmp_path, "cpu")
    with pytest.raises(steps.Ended, match="ended with 3"):
        worker.wait()


def test_a_tree_that_does_not_compile_in_time_is_left_out_and_ended(tmp_path: Path) -> None:
    steps: Any = importlib.import_module("steps")
    (tmp_path / "jax.py").write_text("import time\ntime.sleep(600)")
    workers = {"slow": steps.Worker("h2", tmp_path, "cpu")}
    assert "in time" in steps.wait("h2", workers, until=0.0)["slow"]
    assert workers["slow"].process.returncode is not None
