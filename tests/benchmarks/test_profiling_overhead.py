"""What a profile costs: how programs run in turns, and how ratios are computed from their times."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "profiling"
pytest.importorskip("torch")

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from turns import Turns
turns, count = Turns(sys.argv[2], steps=0, wait=lambda: None), 0
while turns.allows_step():
    count += 1
    if count > int(sys.argv[3]):
        sys.exit("no more steps")
turns.close(weights=str(count))
"""


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    return importlib.import_module("overhead")


def turn(loop_s: float, steps: int = 10) -> dict[str, Any]:
    return {"loop_s": loop_s, "cpu_s": loop_s, "steps": steps}


def test_each_turn_is_compared_with_the_plain_one_of_its_round(overhead: ModuleType) -> None:
    plain = [turn(1.0), turn(2.0), turn(4.0)]
    result = overhead.ratio([turn(1.1), {}, turn(2.0, steps=5)], plain, "loop_s")
    assert result == pytest.approx({"median": 1.05, "low": 1.0, "high": 1.1, "rounds": 2})
    assert overhead.ratio([{}, {}], plain, "loop_s") is None


@pytest.mark.parametrize(("rounds", "low", "high"), [(5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15)])
def test_the_interval_is_that_of_the_sign_test(
    overhead: ModuleType, rounds: int, low: int, high: int
) -> None:
    turns = [turn(float(number)) for number in range(1, rounds + 1)]
    result = overhead.ratio(turns, [turn(1.0)] * rounds, "loop_s")
    assert (result["low"], result["high"]) == pytest.approx(
        (low, high)
    )  # as in tables of the sign test for 95 %


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.99, 1.02, "met"), (1.03, 1.1, "missed"), (1.0, 1.03, "undecided")]
)
def test_a_bar_is_met_only_if_the_whole_interval_is_below_it(
    overhead: ModuleType, low: float, high: float, word: str
) -> None:
    time = {"median": (low + high) / 2, "low": low, "high": high, "rounds": 9}
    way = {"time": time, "cpu": time, "same_weights": True, "recorded": "9 steps", "failure": ""}
    assert f"| 2%: {word} |" in overhead._row("profile --light", way)


def test_every_way_runs_the_same_program_with_the_same_options(overhead: ModuleType, tmp_path: Path) -> None:
    ways = overhead.profilers.ways(FOLDER / "resnet18.py", ["--batch", "7"], tmp_path)
    assert {"plain", "plain again", "profile", "profile --light", "torch.profiler"} <= set(ways)
    for way in ways.values():
        assert any(word.endswith("resnet18.py") for word in way.command)
        assert way.command[-2:] == ["--batch", "7"]


@pytest.mark.parametrize("program", ["resnet18.py", "gpt2.py"])
def test_the_copy_for_traceml_differs_only_in_its_calls(
    overhead: ModuleType, tmp_path: Path, program: str
) -> None:
    before = (FOLDER / program).read_text().splitlines()
    copy = Path(overhead.profilers._with_traceml(FOLDER / program, tmp_path / "copy"))
    added = [
        line.strip() for line in copy.read_text().splitlines() if line.strip() not in map(str.strip, before)
    ]
    assert added == [
        "import traceml_ai as traceml",
        'traceml.init(mode="auto")',
        "with traceml.trace_step(model):",
    ]


def test_programs_have_as_many_steps_each_and_one_that_ends_early_is_left_out(
    overhead: ModuleType, tmp_path: Path
) -> None:
    addresses = {name: tmp_path / f"{name}.socket" for name in ("plain", "other", "short")}
    most = {"plain": 10**9, "other": 10**9, "short": 15}
    ways = {
        name: overhead.profilers.Way(
            [sys.executable, "-c", PROGRAM, str(FOLDER), str(address), str(most[name])], lambda: "all of it"
        )
        for name, address in addresses.items()
    }
    runs = overhead.contest(ways, addresses, main=("plain",), block_s=0.001, seconds=60.0, most=5)
    steps = [turn["steps"] for turn in runs["plain"]["turns"]]
    assert len(steps) == 5
    assert runs["plain"]["result"] == {"weights": str(5 + 1 + 3 + 5 + sum(steps) + 5 * 2)}
    assert len(runs["other"]["turns"]) == 3  # not one of the main ways
    assert not runs["other"]["failure"]
    assert runs["plain"]["recorded"] == "all of it"
    assert "no more steps" in runs["short"]["failure"]
    assert overhead._is_same(runs["short"], runs["plain"]) is None
