"""Steps and phases from a log: which time belongs to which step, checked against hand-made logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.steps import Turns
from pinchpoint.profiling.chrome_trace import write_chrome_trace


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def play(recorder: Recorder, clock: Clock, script: str) -> None:
    """Each word is a time and what happens then: `5+forward`, `9-`, `12!adam` (a mark of an optimizer)."""
    for word in script.split():
        at = word.rstrip("abcdefghijklmnopqrstuvwxyz+-!")
        clock.now, act = int(at), word[len(at) :]
        if act[0] == "+":
            recorder.begin(act[1:])
        elif act[0] == "-":
            recorder.end()
        else:
            recorder.mark("optimizer step", act[1:])


def record(script: str, end: int) -> tuple[Recorder, Clock]:
    clock = Clock()
    recorder = Recorder(clock_ns=clock)
    play(recorder, clock, script)
    clock.now = end
    return recorder, clock


def test_each_step_has_the_time_of_its_phases() -> None:
    recorder, _ = record(
        "10+data 12- 13+forward 18- 20+backward 30- 31+optimizer 35- 35!sgd 40+data 45- 50!sgd", 60
    )
    steps = recorder.finish()
    assert steps.setup_end_ns == 10
    assert [(step.start_ns, step.end_ns) for step in steps.steps] == [(10, 35), (35, 50)]
    # The loss is computed between forward and backward: 5 in the model and 2 after it.
    expected = {"data": 2, "forward": 7, "backward": 10, "optimizer": 4, "other": 2}
    assert steps.steps[0].times.host_ns == expected
    assert steps.steps[1].times.host_ns == {"data": 5, "other": 10}
    assert steps.outside.host_ns == {"other": 20}
    assert list(steps.host_ns) == [25, 15]
    assert steps.later.host_ns == {"data": 5, "other": 10}


def test_an_inner_phase_is_taken_from_the_outer_one() -> None:
    recorder, _ = record("0+optimizer 2+forward 5- 6- 6!lbfgs", 6)
    assert recorder.finish().steps[0].times.host_ns == {"optimizer": 3, "forward": 3}


def test_the_optimizers_of_a_gan_step_once_each_in_one_step() -> None:
    recorder, _ = record("0+data 1- 2!critic 3!generator 6!critic 9!generator", 9)
    assert list(recorder.finish().host_ns) == [3, 6]


def test_a_limit_waits_for_the_last_optimizer_of_a_step() -> None:
    calls = []
    clock = Clock()
    recorder = Recorder(step_limit=2, on_step_limit=lambda: calls.append(clock.now), clock_ns=clock)
    play(recorder, clock, "1!critic 2!generator 3!critic 4!generator")
    assert calls == [4]


def test_a_turn_is_complete_with_the_marks_of_the_first() -> None:
    turns = Turns()
    assert [turns.add(key) for key in ("a", "b", "a")] == [False, False, True]
    assert (turns.closed, turns.count, turns.is_complete) == (1, 2, False)
    turns.add("b")
    assert turns.is_complete


def test_events_of_one_line_are_summed_and_their_steps_counted() -> None:
    clock = Clock()
    recorder = Recorder(clock_ns=clock)
    for step in range(3):
        recorder.event("wait", "item", None, 5)
        recorder.event("wait", "item", None, 7 if step else 1)
        recorder.mark("optimizer step", "adam")
    (line,) = recorder.events.values()
    assert (line.count, line.spent_ns, line.longest_ns, line.steps) == (6, 30, 7, 3)


def test_events_of_an_evaluation_before_the_first_step_happened_in_one_step() -> None:
    recorder = Recorder(clock_ns=Clock())
    for _ in range(4):
        recorder.mark("module call", "net")
        recorder.event("wait", "item", None, 5)
    for _ in range(3):
        recorder.event("wait", "bool", None, 5)
        recorder.mark("module call", "net")
        recorder.mark("optimizer step", "adam")
    evaluation, training = recorder.events.values()
    assert (evaluation.count, evaluation.steps) == (4, 1)
    assert (training.count, training.steps) == (3, 3)


def test_a_long_log_is_folded_without_losing_a_step() -> None:
    clock = Clock()
    recorder = Recorder(clock_ns=clock)
    for step in range(30_000):
        clock.now = 10 * step + 5
        recorder.begin("data")
        clock.now += 3
        recorder.end()
        recorder.mark("optimizer step", "adam")
    assert len(recorder.rows) < 45_000
    steps = recorder.finish()
    assert len(steps.host_ns) == 30_000
    assert steps.later.host_ns["data"] == 29_999 * 3
    assert len(steps.steps) == 5_000


@pytest.mark.parametrize(("phase", "first_ns"), [("evaluation", 5), ("forward", 300_005)])
def test_an_optimizer_that_comes_late_in_a_long_log_still_ends_the_steps(phase: str, first_ns: int) -> None:
    clock = Clock()
    recorder = Recorder(clock_ns=clock)
    for call in range(30_000):  # so many that they are folded before the optimizer is known
        clock.now = 10 * call
        recorder.begin(phase)
        clock.now += 4
        recorder.end()
        recorder.mark("module call", "net")
    play(recorder, clock, "300000+forward 300004- 300005!adam 300010+data 300012- 300015!adam")
    steps = recorder.finish()
    assert steps.kind == "optimizer step"
    assert list(steps.host_ns) == [first_ns, 10]
    assert sum(steps.outside.host_ns.values()) == 300_005 - first_ns
    assert sum(steps.steps[0].times.host_ns.values()) == first_ns
    assert steps.later.host_ns == {"data": 2, "other": 8}


def test_the_time_of_an_event_in_the_first_step_is_known_apart() -> None:
    recorder = Recorder(clock_ns=Clock())
    for spent_ns in (100, 5, 6):
        recorder.mark("module call", "net")
        recorder.event("wait", "item", None, spent_ns)
        recorder.mark("optimizer step", "adam")
    (line,) = recorder.events.values()
    assert (line.spent_ns, line.first_ns, line.steps) == (111, 100, 3)


def test_a_copy_can_be_finished_while_the_run_goes_on() -> None:
    recorder, clock = record("0+data 1- 2!adam 4!adam", 5)
    reads = []
    recorder.rows[0] = recorder.rows[0]._replace(stamp="first")
    recorder.device_ns = lambda stamp: reads.append(stamp) or 0.0
    assert list(recorder.copy().finish().host_ns) == [2, 2]
    assert reads == []  # a stamp may be read only once
    clock.now = 9
    recorder.mark("optimizer step", "adam")
    assert list(recorder.finish().host_ns) == [2, 2, 5]


def test_a_history_is_limited_so_that_its_file_stays_below_20_mb(tmp_path: Path) -> None:
    clock = Clock()
    recorder = Recorder(clock_ns=clock, keep_history=True)
    place = (clock.__call__.__code__, 0)
    for step in range(60_000):
        clock.now = 1_000_000 * step
        recorder.begin("host to device")
        clock.now += 500_000
        recorder.event("wait", "formatting a tensor", place, 400_000)
        recorder.event("wait", "formatting a tensor", place, 400_000)
        recorder.end()
        recorder.mark("optimizer step", "adam")
    recorder.finish()
    path = write_chrome_trace(recorder, tmp_path / "chrome.json")
    assert 5e6 < path.stat().st_size < 20e6


def test_the_device_has_times_of_its_own_and_is_idle_while_data_is_loaded() -> None:
    clock = Clock()
    recorder = Recorder(clock_ns=clock)
    behind = 0
    # The device is behind the host by what is queued. Here a stamp is the time of its arrival.
    recorder.stamp, recorder.device_ns = lambda: clock.now + behind, float
    ms = 1_000_000
    for step in range(2):
        clock.now = step * 100 * ms
        recorder.begin("data")  # 40 ms, in which the device has nothing to do
        clock.now += 40 * ms
        recorder.end()
        recorder.begin("forward")  # 10 ms on the host, 30 ms on the device
        clock.now += 10 * ms
        behind = 20 * ms
        recorder.end()
        recorder.begin("optimizer")
        clock.now += 50 * ms  # the program waits here, and the device catches up
        behind = 0
        recorder.end()
        recorder.mark("optimizer step", "adam")
    second = recorder.finish().steps[1].times
    assert second.host_ns == {"data": 40 * ms, "forward": 10 * ms, "optimizer": 50 * ms}
    assert second.device_ns == {"data": 40 * ms, "forward": 30 * ms, "optimizer": 30 * ms}
    assert second.idle_ns == 40 * ms
    assert second.near_ns == 50 * ms  # it kept up only at the end of the wait


def test_time_of_the_profiler_itself_belongs_to_no_step() -> None:
    recorder, clock = record("0+data 2- 4!adam", 4)
    with recorder.paused():
        clock.now = 1000
    play(recorder, clock, "1003!adam")
    assert list(recorder.finish().host_ns) == [4, 3]


def test_memory_is_read_at_each_early_step_and_later_at_most_every_two_milliseconds() -> None:
    clock, reads = Clock(), []
    recorder = Recorder(clock_ns=clock)
    recorder.memory_now = lambda: reads.append(clock.now) or len(reads)
    for step in range(600):
        clock.now = step * 500_000
        recorder.mark("optimizer step", "adam")
    assert len(reads) == 199 + 100  # the first 199, and every fourth of the other 401
    sizes = recorder.finish().memory_bytes
    assert len(sizes) == 600
    assert list(sizes) == sorted(sizes)


@pytest.mark.parametrize(("light", "read"), [(False, 19 + 20), (True, 7 + 6)])
def test_times_of_the_device_in_some_steps_stand_for_all(light: bool, read: int) -> None:
    clock, stamps = Clock(), []
    recorder = Recorder(clock_ns=clock, light=light)
    recorder.stamp, recorder.device_ns = lambda: stamps.append(clock.now) or clock.now, float
    for _ in range(100):
        recorder.begin("data")
        clock.now += 4_000_000
        recorder.end()
        recorder.begin("forward")
        clock.now += 6_000_000
        recorder.end()
        recorder.mark("optimizer step", "adam")
    steps = recorder.finish()
    assert len(stamps) == 4 * (read + 1)  # and in the very first step
    assert steps.later.host_ns == {"data": 99 * 4_000_000, "forward": 99 * 6_000_000}
    assert steps.later.device_ns == pytest.approx({"data": 99 * 4e6, "forward": 99 * 6e6})
    assert steps.later.idle_ns == pytest.approx(99 * 4e6)
    assert steps.later.near_ns == pytest.approx(99 * 6e6)
    known = [number for number, step in enumerate(steps.steps) if step.times.device_ns]
    assert known[-2:] == ([92, 96] if not light else [80, 96])
