"""Findings get what the profile measured at their statements, and everything is ranked by cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.backends.recording.steps import BUILT_AGAIN
from pinchpoint.checking.merging import merge
from pinchpoint.core.findings import Finding
from pinchpoint.core.records import Forecast, Line, Problem, Record, Trace, TraceEvent
from pinchpoint.rules.suggestions import Suggestion


def finding(rule: str, name: str, line: int, last: int | None = None, file: str = "train.py") -> Suggestion:
    return Suggestion(Finding(rule, name, file, line, 1, f"{name}.", "Fix it.", False), line, last or line)


@pytest.fixture
def trace(samples: dict[str, Record]) -> Trace:
    """Four steps of 0.5 s on a GPU, in which nothing happened."""
    sample = samples["trace"]
    assert isinstance(sample, Trace)
    return replace(sample, device="cuda", steps=4, events=(), problems=(), step_times={"mean_s": 0.5})


def event(kind: str, line: int, host_s: float, count: int = 4) -> TraceEvent:
    """Something that takes as long in each of the four steps."""
    return TraceEvent(
        kind, "Tensor.item", "train.py", line, count, 4, host_s, host_s, "other", first_s=host_s / 4
    )


def problem(kind: str, line: int, **more: Any) -> Problem:
    return Problem(kind, f"{kind} here.", "Change it.", "train.py" if line else "", line, **more)


def test_a_finding_gets_the_seconds_per_step_of_the_waits_in_its_statement(trace: Trace) -> None:
    trace = replace(trace, events=(event("wait", 11, 0.4), event("wait", 20, 9.0)))
    (advice,) = merge([finding("PP101", "sync-in-loop", 10, 12)], trace, None)
    assert (advice.seen, advice.cost_s, advice.share) == ("measured", pytest.approx(0.1), pytest.approx(0.2))


def test_waits_of_a_first_evaluation_are_no_cost_of_every_step(trace: Trace) -> None:
    trace = replace(trace, events=(replace(event("wait", 10, 0.4, 10), steps=1),))
    (advice,) = merge([finding("PP101", "sync-in-loop", 10)], trace, None)
    assert (advice.seen, advice.cost_s) == ("counted", None)
    assert advice.evidence == ("Tensor.item happened 10 times.",)


def test_a_problem_that_a_rule_explains_is_its_evidence_and_not_listed_again(trace: Trace) -> None:
    trace = replace(trace, problems=(problem("wait", 10, cost_s=0.8, share=0.4, count=40),))
    (advice,) = merge([finding("PP101", "sync-in-loop", 10)], trace, None)
    assert advice.evidence == ("wait here.",)
    assert (advice.cost_s, advice.share) == (0.2, 0.4)


def test_a_problem_without_a_rule_is_advice_of_its_own(trace: Trace) -> None:
    trace = replace(trace, problems=(problem("wait", 30, cost_s=0.8, share=0.4, count=40),))
    first, second = merge([finding("PP301", "graph-kept", 10)], trace, None)
    assert (first.rule, first.name, first.line, first.cost_s) == ("", "wait", 30, 0.2)
    assert second.name == "graph-kept"


def test_a_share_and_its_seconds_are_of_the_same_steps(trace: Trace) -> None:
    """The time of a phase leaves the first step out: three steps of 0.5 s, of which 1.2 s wait for data."""
    trace = replace(trace, problems=(problem("data", 30, cost_s=1.2, share=0.8, count=4),))
    (advice,) = merge([finding("PP404", "loader-without-workers", 30)], trace, None)
    assert (advice.cost_s, advice.share) == (pytest.approx(0.4), 0.8)


def test_problems_of_one_kind_at_one_line_are_one_advice(trace: Trace) -> None:
    seconds = {10: (0.4, 0.8), 20: (1.0,)}
    problems = [problem("recompile", line, cost_s=s) for line, each in seconds.items() for s in each]
    answers = merge([], replace(trace, problems=tuple(problems)), None)
    assert [(advice.line, advice.cost_s) for advice in answers] == [(10, pytest.approx(0.3)), (20, 0.25)]
    assert answers[0].what == "recompile here. And 1 more of this kind at this line."


def test_a_function_that_is_built_again_is_the_cost_of_the_finding_that_names_it(
    trace: Trace, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text("for x in data:\n    @jax.jit\n    def step(x): ...\n    step(x)\n    other(x)\n")
    again = problem("recompile", 4, cost_s=2.0)
    again = replace(again, what=f"step was compiled again 3 times: {BUILT_AGAIN}.", file=str(file))
    trace = replace(trace, problems=(again,))
    (advice,) = merge([finding("PP201", "transform-in-loop", 2, 3, str(file))], trace, None)
    assert (advice.rule, advice.cost_s) == ("PP201", 0.5)
    assert len(merge([finding("PP201", "transform-in-loop", 5, 5, str(file))], trace, None)) == 2


def test_the_same_finding_at_the_same_line_is_told_once(trace: Trace) -> None:
    twice = [finding("PP402", "unpinned-non-blocking", 10), finding("PP402", "unpinned-non-blocking", 10)]
    assert len(merge(twice, trace, None)) == 1


def test_a_wait_of_the_first_step_is_no_cost_of_the_others(trace: Trace) -> None:
    trace = replace(trace, events=(replace(event("wait", 10, 2.3), first_s=2.0),))
    (advice,) = merge([finding("PP101", "sync-in-loop", 10)], trace, None)
    assert (advice.cost_s, advice.share) == (pytest.approx(0.1), pytest.approx(0.2))


def test_a_cost_of_another_kind_at_the_same_line_is_not_the_cost_of_a_finding(trace: Trace) -> None:
    trace = replace(trace, events=(event("wait", 10, 0.4),))
    answers = merge([finding("PP521", "reused-permutation", 10)], trace, None)
    assert [advice.cost_s for advice in answers] == [None]


def test_one_wait_per_step_without_a_rule_is_left_out(trace: Trace) -> None:
    trace = replace(trace, problems=(problem("wait", 30, cost_s=0.8, count=4),))
    assert merge([], trace, None) == ()


def test_sampled_lines_give_a_loop_its_share_of_the_step(trace: Trace) -> None:
    lines = tuple({"file": "train.py", "line": line, "samples": 30, "share": 0.3} for line in (10, 11, 40))
    loop = finding("PP106", "loop-over-samples", 10, 12)
    (advice,) = merge([loop], replace(trace, lines=lines, device="cpu"), None)
    assert (advice.share, advice.cost_s) == (pytest.approx(0.6), pytest.approx(0.3))


def test_without_a_gpu_a_wait_is_counted_and_has_no_cost(trace: Trace) -> None:
    trace = replace(trace, device="cpu", events=(event("wait", 10, 0.4),))
    (advice,) = merge([finding("PP101", "sync-in-loop", 10)], trace, None)
    assert (advice.seen, advice.cost_s) == ("counted", None)


def test_growth_and_missing_gradients_belong_to_the_rules_that_explain_them(trace: Trace) -> None:
    trace = replace(trace, problems=(problem("growth", 31, bytes=512), problem("no gradient", 0)))
    answers = merge([finding("PP301", "graph-kept", 10), finding("PP501", "gradient-cut", 5)], trace, None)
    assert [(advice.name, advice.seen, advice.bytes) for advice in answers] == [
        ("graph-kept", "counted", 512),
        ("gradient-cut", "counted", None),
    ]


def test_lines_that_never_ran_come_last_and_say_so(trace: Trace) -> None:
    ran = {10: True, 20: False, 30: None}
    watched = tuple({"file": "train.py", "line": line, "ran": value} for line, value in ran.items())
    findings = [finding("PP531", "cache-keyed-by-size", line) for line in (20, 30, 10)]
    answers = merge(findings, replace(trace, watched=watched), None)
    assert [(advice.line, advice.seen) for advice in answers] == [
        (10, "ran"),
        (30, "not seen"),
        (20, "did not run"),
    ]


def test_the_order_is_cost_then_predicted_bytes_then_the_rest(
    trace: Trace, samples: dict[str, Record]
) -> None:
    forecast = samples["forecast"]
    assert isinstance(forecast, Forecast)
    forecast = replace(forecast, lines=tuple(Line("train.py", n, n * 1000, "forward") for n in (50, 60)))
    trace = replace(trace, events=(event("copy", 10, 0.1), event("wait", 20, 0.2)))
    findings = [
        finding("PP531", "cache-keyed-by-size", 1),
        finding("PP305", "missing-no-grad", 50),
        finding("PP305", "missing-no-grad", 60),
        finding("PP411", "unused-device-copy", 10),
        finding("PP101", "sync-in-loop", 20),
    ]
    answers = merge(findings, trace, forecast)
    assert [advice.line for advice in answers] == [20, 10, 60, 50, 1]
    assert [advice.bytes for advice in answers] == [None, None, 60_000, 50_000, None]


def test_without_a_profile_every_finding_is_kept_as_not_seen() -> None:
    (advice,) = merge([finding("PP101", "sync-in-loop", 10)], None, None)
    assert (advice.seen, advice.cost_s) == ("not seen", None)


@pytest.mark.parametrize("kind", ["launch bound", "data"])
@pytest.mark.parametrize(("steps", "count"), [(4, 0), (20, 1)])
def test_a_device_that_waits_is_told_only_after_the_first_steps(
    kind: str, steps: int, count: int, trace: Trace
) -> None:
    trace = replace(trace, steps=steps, problems=(problem(kind, 0, share=0.8),))
    advice = merge([], trace, None)
    assert [each.group for each in advice] == ["cost"] * count
