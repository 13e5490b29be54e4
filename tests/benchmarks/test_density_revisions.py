"""The stages of two source trees are timed in turn, and a tree whose process ends is left out.

The page has the figures of the records.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def revisions(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "density"))
    return importlib.import_module("revisions")


class Worker:
    """Takes 3 s in the tree `old` and 2 s in `new`, and longer at first; that of `late` ends in its last
    case.
    """

    calls: list[str] = []

    def __init__(self, tree: Path, arguments: list[str]) -> None:
        self.name, self.turns = tree.name, 0
        self.about = {"error": 1e-6, "machine": {"gpu": "a GPU"}}

    def wait(self) -> None:
        self.calls.append(f"wait {self.name}")

    def seconds(self, case: str) -> float:
        self.calls.append(f"{case} {self.name}")
        self.turns += 1
        if self.name == "late" and case == "file":
            raise importlib.import_module("revisions").Ended("ended with 3")
        return {"old": 3.0, "new": 2.0, "late": 2.5}[self.name] + (100 if self.turns <= 2 else 0)

    def close(self) -> None:
        self.calls.append(f"close {self.name}")


@pytest.mark.parametrize("after", ["new", "late"])
def test_trees_take_turns_and_one_that_ends_is_left_out(
    revisions: Any, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "Worker", Worker)
    monkeypatch.setattr(Worker, "calls", [])
    output = tmp_path / "record.json"
    arguments = ["--before", "old", "--after", after, "--rounds", "3", "-o", str(output)]
    monkeypatch.setattr(sys, "argv", ["revisions.py", *arguments])
    assert revisions.main() == (after == "late")
    turns = ["probes old", f"probes {after}"] * 5
    assert Worker.calls[:12] == ["wait old", f"wait {after}", *turns]
    record = json.loads(output.read_text())
    assert record["machine"] == {"gpu": "a GPU"} and record["trees"]["before"] == {"error": 1e-6}
    probes, file = record["cases"]
    assert probes["trees"]["before"]["seconds"] == 3.0 and probes["trees"]["before"]["runs"] == 3
    assert probes["before_over_after"][0] == pytest.approx(1.5 if after == "new" else 1.2)
    if after == "new":
        assert file["trees"]["after"]["seconds"] == 2.0 and not record["failures"]
        assert Worker.calls[-2:] == ["close old", "close new"]
    else:
        assert set(file["trees"]) == {"before"} and record["failures"] == {"after": "ended with 3"}
        assert Worker.calls[-1] == "close old"


def test_a_process_that_fails_is_noticed(revisions: Any, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit(3)")
    worker = revisions.Worker(tmp_path, ["--device", "cpu"])
    with pytest.raises(revisions.Ended, match="ended with 3"):
        worker.wait()


def test_the_page_has_the_figures_of_the_records() -> None:
    root = Path(__file__).parents[2]
    results = root / "benchmarks" / "results"
    page = (root / "docs" / "systems" / "density.md").read_text("utf-8")
    revisions, whole = (
        json.loads((results / f"density_{name}_h200.json").read_text("utf-8"))
        for name in ("revisions", "whole")
    )

    def shown(timing: dict[str, float]) -> str:
        return "{:.1f} ms [{:.1f}, {:.1f}]".format(*(1e3 * timing[k] for k in ("seconds", "low_s", "high_s")))

    figures = [f"`{revisions['before']}`", f"{whole['file']['first_s']:.1f} s", shown(whole["file"])]
    for case in revisions["cases"]:
        ratio, low, high = case["before_over_after"]
        times = (shown(case["trees"][tree]) for tree in ("before", "after"))
        figures.append(" | ".join((*times, f"{ratio:.2f} [{low:.2f}, {high:.2f}]")))
    for tree in revisions["trees"].values():
        figures += [f"{tree['peak_bytes'] / 2**20:.0f} MiB", f"{tree['error']:.1e}".replace("e-0", "e-")]
    fine = whole["fine"]
    figures.append(
        f"{fine['seconds']:.2f} s and {fine['peak_bytes'] / 2**20:.0f} MiB on a card capped at 6 GiB"
    )
    assert [text for text in figures if text not in page] == []
    report = (root / "docs" / "reports" / "density.md").read_text("utf-8")
    assert figures[-1] in report
