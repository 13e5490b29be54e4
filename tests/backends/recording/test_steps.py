"""Steps and phases from a log: which time belongs to which step, checked against hand-made logs."""

from __future__ import annotations

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.steps import Turns


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


def test_a_long_log_is_folded_without_losing_a_step(monkeypatch: object) -> None:
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


def test_a_copy_can_be_finished_while_the_run_goes_on() -> None:
    recorder, clock = record("0+data 1- 2!adam 4!adam", 5)
    assert list(recorder.copy().finish().host_ns) == [2, 2]
    clock.now = 9
    recorder.mark("optimizer step", "adam")
    assert list(recorder.finish().host_ns) == [2, 2, 5]
