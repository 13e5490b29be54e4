"""Two versions of a script take turns, a block of steps each; a script that cannot is run from its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.checking import comparing
from pinchpoint.checking.comparing import Failure, Times, compare, judge
from pinchpoint.core.records import Record, Trace
from pinchpoint.profiling.paused_script import PausedScript

# The seconds of a step of a side (0 or 1) in the nth start of it, at a point of time of both.
StepTime = Callable[[int, int, int], float]


class Machine:
    """Stands for the processes of scripts: each step takes the time that `step_s` gives."""

    def __init__(self, trace: Trace, step_s: StepTime, *, last_step: int = 10**9, fails: str = "") -> None:
        self.trace, self.step_s, self.last_step, self.fails = trace, step_s, last_step, fails
        self.log: list[tuple[int, int]] = []  # side and steps of each block
        self.runs: list[int] = []
        self.starts: list[int] = []
        self.ended = 0

    def start(self, side: int) -> FakeScript:
        self.starts.append(side)
        return FakeScript(self, side, self.starts.count(side))

    def run(self, side: int) -> Trace:
        self.runs.append(side)
        return self.end(side, step_times={"median_s": self.step_s(side, 0, 0)})

    def end(self, side: int, **values: Any) -> Trace:
        if self.fails == comparing._NAMES[side]:
            values |= {"ended": "raised", "error": "ValueError: broken"}
        return replace(self.trace, **{"ended": "stopped", "error": "", "exit_code": 0, **values})


class FakeScript:
    def __init__(self, machine: Machine, side: int, number: int) -> None:
        self.machine, self.side, self.number, self.step = machine, side, number, 1

    def wait_until_ready(self, limit_s: float) -> bool:
        return self.machine.fails != comparing._NAMES[self.side]

    def run_block(self, *, warmup: int, steps: int, limit_s: float) -> float | None:
        self.step += warmup + steps
        if self.step > self.machine.last_step:
            return None
        self.machine.log.append((self.side, steps))
        return steps * self.machine.step_s(self.side, self.number, len(self.machine.log))

    def end(self) -> Trace:
        self.machine.ended += 1
        return self.machine.end(self.side)


@pytest.fixture
def trace(samples: dict[str, Record]) -> Trace:
    sample = samples["trace"]
    assert isinstance(sample, Trace)
    return replace(sample, ended="stopped", step_is="optimizer step", steps=20, framework="torch")


def measure(machine: Machine, pairs: int | None = None, **values: Any) -> Times:
    trace = replace(machine.trace, **values)
    times = compare(machine.run, machine.start, pairs=pairs, trace=trace, time_limit_s=60.0)
    assert isinstance(times, Times)
    assert machine.ended == len(machine.starts)
    return times


def faster_after(side: int, start: int, at: int) -> float:
    return (0.2, 0.1)[side] * (1 + 0.001 * at)


def test_blocks_of_both_alternate_in_two_starts_of_each(trace: Trace) -> None:
    machine = Machine(trace, faster_after)
    times = measure(machine)
    assert machine.starts == [0, 1, 0, 1]
    assert times.pairs_of_starts == (5, 5)
    assert times.block_steps == 5  # about a second of the slower version
    # In each start: the first steps, a block that is not counted, and then pairs.
    assert machine.log[:8] == [(0, 4), (1, 4), (0, 5), (1, 5), (0, 5), (1, 5), (1, 5), (0, 5)]
    assert machine.runs == []
    result = judge(times)
    assert result["verdict"] == "faster"
    assert result["speedup"] == pytest.approx(2.0, rel=0.01)


def test_noise_around_one_is_no_measurable_change(trace: Trace) -> None:
    times = measure(Machine(trace, lambda side, start, at: 0.1 * (1 + 0.01 * (at * 7 % 5))))
    assert judge(times)["verdict"] == "no measurable change"


def test_starts_that_disagree_prove_nothing(trace: Trace) -> None:
    # The ratios of one start are all far above 1, and those of the other all just below it.
    times = Times((2.0,) * 9 + (0.99,), (1.0,) * 10, "step", (9, 1), 5)
    assert judge(replace(times, pairs_of_starts=(10,)))["verdict"] == "faster"
    result = judge(times)
    assert result["verdict"] == "no measurable change"
    assert "One start of the script is faster" in result["reason"]


def test_a_slow_down_is_called_one_and_few_pairs_prove_nothing(trace: Trace) -> None:
    machine = Machine(trace, lambda side, start, at: (0.1, 0.2)[side])
    assert judge(measure(machine, 6))["verdict"] == "slower"
    result = judge(measure(Machine(trace, faster_after), 5))
    assert result["verdict"] == "too few pairs"
    assert "at least 6" in result["reason"]


def test_the_blocks_of_a_short_script_fit_into_its_steps(trace: Trace) -> None:
    machine = Machine(trace, faster_after, last_step=24)
    times = measure(machine, ended="finished", steps=24)
    assert (times.pairs_of_starts, times.block_steps) == ((5, 5), 2)


def test_a_script_that_ends_early_is_started_more_often(trace: Trace) -> None:
    machine = Machine(trace, faster_after, last_step=26)
    assert measure(machine, 6).pairs_of_starts == (2, 2, 2)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"step_is": "module call"}, "takes no optimizer steps"),
        ({"steps": 0}, "takes no optimizer steps"),
        ({"framework": "jax", "device": "cuda", "step_is": "jitted call"}, "JAX reserves"),
        ({"ended": "finished", "steps": 4}, "only 4 steps"),
    ],
)
def test_a_script_that_cannot_take_turns_is_run_from_its_start(
    values: dict[str, Any], why: str, trace: Trace
) -> None:
    machine = Machine(trace, faster_after, last_step=values.get("steps", 0))
    times = measure(machine, **values)
    assert machine.runs == [0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]
    assert (times.block_steps, times.timed) == (0, "step")
    assert why in times.note
    assert judge(times)["verdict"] == "faster"


def test_runs_without_steps_are_compared_as_a_whole(trace: Trace) -> None:
    machine = Machine(trace, faster_after)

    def run(side: int) -> Trace:
        return machine.end(side, step_times={}, took_s=(6.0, 5.0)[side])

    times = compare(run, machine.start, pairs=None, trace=replace(trace, steps=0), time_limit_s=60.0)
    assert isinstance(times, Times)
    assert (times.timed, times.before_s[0], times.after_s[0]) == ("run", 6.0, 5.0)
    assert machine.starts == []


def test_a_version_that_fails_beside_the_other_is_tried_alone(trace: Trace) -> None:
    machine = Machine(trace, faster_after, fails="after")
    result = compare(machine.run, machine.start, pairs=None, trace=trace, time_limit_s=60.0)
    assert result == Failure("ValueError: broken", 1)
    assert (machine.starts, machine.ended, machine.runs) == ([0, 1], 2, [0, 1])


def test_scripts_are_ended_if_the_comparison_is_interrupted(trace: Trace) -> None:
    def interrupt(side: int, start: int, at: int) -> float:
        if at > 7:
            raise KeyboardInterrupt
        return 0.1

    machine = Machine(trace, interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare(machine.run, machine.start, pairs=None, trace=trace, time_limit_s=60.0)
    assert machine.ended == 2


TRAIN = """import atexit, time, torch
atexit.register(lambda: print("exit handler ran"))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10_000):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(SECONDS)
"""


@pytest.mark.slow
def test_a_really_faster_script_is_seen_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(comparing, "_STARTS", 1)
    monkeypatch.setattr(comparing, "_BLOCK_S", 0.1)
    scripts = []
    for seconds in ("0.05", "0.0"):
        scripts.append(tmp_path / f"train_{seconds}.py")
        scripts[-1].write_text(TRAIN.replace("SECONDS", seconds))

    def start(side: int) -> PausedScript:
        return PausedScript(str(scripts[side]), output_to_stderr=True)

    def run(side: int) -> Trace:
        pytest.fail("No whole run is needed.")

    times = compare(run, start, pairs=6, trace=None, time_limit_s=600.0)
    assert isinstance(times, Times)
    assert judge(times)["verdict"] == "faster"
    assert times.pairs_of_starts == (6,)
    # The time in which the other version had its turn does not count.
    assert min(times.before_s) >= 0.05
    assert sorted(times.after_s)[3] < min(times.before_s)
    assert capfd.readouterr().err.count("exit handler ran") == 2
