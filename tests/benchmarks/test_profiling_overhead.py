"""What a profile costs: how overheads are computed from runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "profiling"


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    return importlib.import_module("overhead")


def test_each_run_is_compared_with_the_plain_run_of_its_round(overhead: ModuleType) -> None:
    runs = {
        "plain": [{"loop_s": 1.0}, {"loop_s": 2.0}, {"loop_s": 4.0}],
        "light": [{"loop_s": 1.1}, {"failed": "exit code 1"}, {"loop_s": 4.0}],
        "broken": [{"failed": "exit code 1"}] * 3,
    }
    result = overhead.overhead(runs, "light", "loop_s")
    assert result == pytest.approx({"median": 0.05, "low": 0.0, "high": 0.1, "runs": 2})
    assert overhead.overhead(runs, "broken", "loop_s") is None


def test_every_way_runs_the_same_program_with_the_same_options(overhead: ModuleType, tmp_path: Path) -> None:
    commands = overhead.ways(tmp_path, ["--steps", "7"])
    assert {"plain", "pinchpoint", "pinchpoint --light", "torch.profiler"} <= set(commands)
    for command in commands.values():
        assert overhead.PROGRAM in command
        assert command[-2:] == ["--steps", "7"]
