"""`merge`: findings, the profile and the forecast as one ranked list of advice.

A finding gets what the profile measured at its statement: the time of its calls (waits, copies, compilations,
cleanups), or else the sampled time of its lines. What only the profile found is advice too. Most expensive
first, then most predicted bytes; then what is about correctness, then what has no measured cost.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pinchpoint.backends.recording.steps import BUILT_AGAIN
from pinchpoint.core.records import Advice, Forecast, Problem, Trace, TraceEvent
from pinchpoint.core.records.check import Group, Seen
from pinchpoint.rules.suggestions import Suggestion

_CLEANUPS = {"empty-cache-in-loop", "gc-in-loop"}
_REBUILDS = {"module-in-loop"}
# Rules outside the families of waits, recompiles and copies whose cost is the time of their lines.
_TIMED = _CLEANUPS | _REBUILDS | {"full-hessian", "grown-by-concatenation", "gradients-set-to-zero"}
# Problems that are reported at another line than the finding that explains them, or at none.
_ELSEWHERE = {
    "growth": {"graph-kept"},
    "data": {"loader-without-workers"},
    "copy": {"loader-without-pinning"},
    "no gradient": {"gradient-cut", "loss-without-gradient"},
}
_SETTLED = 10  # steps from which on it can be told whether the device waits for the program
_FEW_SAMPLES = 2  # below this, the time of a line is not known
_GROUPS = get_args(Group)
_ORDER: dict[Seen, int] = {"measured": 0, "counted": 1, "ran": 2, "not seen": 3, "did not run": 4}


@dataclass(frozen=True)
class _Cost:
    seconds: float
    share: float | None


def merge(
    suggestions: Sequence[Suggestion], trace: Trace | None, forecast: Forecast | None
) -> tuple[Advice, ...]:
    """Rank everything that is known about a script."""
    advice: list[Advice] = []
    explained: set[int] = set()
    problems = trace.problems if trace is not None else ()
    for suggestion in _distinct(suggestions):
        numbers = [number for number, problem in enumerate(problems) if _explains(suggestion, problem)]
        explained.update(numbers)
        advice.append(_of_finding(suggestion, [problems[number] for number in numbers], trace, forecast))
    if trace is not None:
        rest = [problem for number, problem in enumerate(problems) if number not in explained]
        for group in _by_place(problem for problem in rest if _is_worth_a_word(problem, trace)):
            advice.append(_of_problems(group, trace))
    return tuple(sorted(advice, key=_rank))


def _distinct(suggestions: Sequence[Suggestion]) -> Iterable[Suggestion]:
    """Suggestions without those that say the same about the same line, such as of two copies."""
    return {
        (each.finding.rule, each.finding.file, each.finding.line, each.finding.message, each.diff): each
        for each in reversed(suggestions)
    }.values()


def _rank(advice: Advice) -> tuple[Any, ...]:
    return (
        _GROUPS.index(advice.group),
        -(advice.cost_s or 0.0),
        -(advice.bytes or 0),
        _ORDER[advice.seen],
        not advice.is_safe,
        advice.file,
        advice.line,
    )


def _is_at(suggestion: Suggestion, file: str, line: int) -> bool:
    inside = suggestion.first_line <= line <= suggestion.last_line
    return inside and bool(file) and os.path.realpath(file) == os.path.realpath(suggestion.finding.file)


def _fits(suggestion: Suggestion, kind: str) -> bool:
    """Whether a rule is about what an event or problem of the profile is."""
    rule, name = suggestion.finding.rule, suggestion.finding.name
    families = {"wait": "PP1", "copy": "PP4", "copy again": "PP4", "recompile": "PP2", "build": "PP2"}
    if kind == "cleanup":
        return name in _CLEANUPS
    if kind == "rebuild":
        return name in _REBUILDS
    if kind == "compile":
        return rule.startswith("PP2")
    if kind == "wait" and name == "host-read-before-sync":
        return True
    return kind in families and rule.startswith(families[kind])


def _explains(suggestion: Suggestion, problem: Problem) -> bool:
    if suggestion.finding.name in _ELSEWHERE.get(problem.kind, ()):
        return True
    if problem.kind == "recompile" and BUILT_AGAIN in problem.what:
        return _builds(suggestion, problem)
    return _fits(suggestion, problem.kind) and _is_at(suggestion, problem.file, problem.line)


def _builds(suggestion: Suggestion, problem: Problem) -> bool:
    """Whether a finding is about a function that is compiled again, by its name, where it is called."""
    name, finding = problem.what.partition(" ")[0].strip("<>"), suggestion.finding
    if not finding.rule.startswith("PP2") or os.path.realpath(finding.file) != os.path.realpath(problem.file):
        return False
    lines = range(suggestion.first_line, suggestion.last_line + 1)
    return any(re.search(rf"\b{re.escape(name)}\b", linecache.getline(finding.file, line)) for line in lines)


def _is_worth_a_word(problem: Problem, trace: Trace) -> bool:
    """Leave to `profile` what is no fault by itself.

    Most programs need one wait per step. In the first steps, kernels are loaded and workers start, so that
    the device waits in every program.
    """
    if problem.kind in ("launch bound", "data"):
        return trace.steps >= _SETTLED
    return problem.kind != "wait" or problem.count > 1.5 * max(trace.steps, 1)


def _by_place(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Problems of the same kind at the same line, together; those without a line each alone."""
    groups: dict[tuple[Any, ...], list[Problem]] = {}
    for number, problem in enumerate(problems):
        key = (problem.kind, problem.file, problem.line) if problem.file else (number,)
        groups.setdefault(key, []).append(problem)
    return list(groups.values())


def _of_problems(problems: Sequence[Problem], trace: Trace) -> Advice:
    """The advice for problems of the same kind at one line: the costliest, and the others as evidence."""
    first = problems[0]
    costs = [_per_step(problem, trace) for problem in problems if problem.cost_s is not None]
    shares = [problem.share for problem in problems if problem.share is not None]
    sizes = [problem.bytes for problem in problems if problem.bytes is not None]
    more = len(problems) - 1
    return Advice(
        what=f"{first.what} And {more:,} more of this kind at this line." if more else first.what,
        hint=first.hint,
        seen="measured" if costs else "counted",
        file=first.file,
        line=first.line,
        code=_code(first.file, first.line),
        name=first.kind,
        evidence=tuple(problem.what for problem in problems[1:]),
        cost_s=sum(costs) if costs else None,
        share=min(1.0, sum(shares)) if shares else None,
        bytes=sum(sizes) if sizes else None,
    )


def _of_finding(
    suggestion: Suggestion, problems: Sequence[Problem], trace: Trace | None, forecast: Forecast | None
) -> Advice:
    finding = suggestion.finding
    events = [
        event
        for event in (trace.events if trace is not None else ())
        if _fits(suggestion, event.kind) and _is_at(suggestion, event.file, event.line)
    ]
    cost = _cost(suggestion, problems, events, trace)
    return Advice(
        what=finding.message,
        hint=finding.hint,
        seen=_seen(suggestion, problems, events, trace, cost),
        file=finding.file,
        line=finding.line,
        code=_code(finding.file, finding.line),
        rule=finding.rule,
        name=finding.name,
        evidence=_evidence(problems, events, trace),
        cost_s=None if cost is None else cost.seconds,
        share=None if cost is None else cost.share,
        bytes=_bytes(suggestion, problems, forecast),
        diff=suggestion.diff,
        is_safe=suggestion.is_safe,
    )


def _per_step(problem: Problem, trace: Trace) -> float:
    """The seconds per step that a problem costs. A share is of the steps after the first one."""
    if problem.share is not None and "mean_s" in trace.step_times:
        return problem.share * trace.step_times["mean_s"]
    return (problem.cost_s or 0.0) / max(trace.steps, 1)


def _cost(
    suggestion: Suggestion, problems: Sequence[Problem], events: Sequence[TraceEvent], trace: Trace | None
) -> _Cost | None:
    """The seconds per step of the calls at a statement, or of its lines, whichever is known and larger."""
    if trace is None:
        return None
    costs = [
        _Cost(_per_step(problem, trace), problem.share) for problem in problems if problem.cost_s is not None
    ]
    whole_s = trace.step_times.get("mean_s", trace.took_s)
    # Without CUDA, nothing waits for a device in torch: the time in these calls is not what a wait costs.
    is_real = trace.device == "cuda" or trace.framework == "jax"
    # What happened only before the second step, such as in a first evaluation, is no cost of every step.
    timed = [
        event
        for event in events
        if event.host_s > 0 and (event.steps > 1 or trace.steps < 2) and (is_real or event.kind != "wait")
    ]
    if timed:
        if trace.steps > 1:  # the first step is unlike the others
            spent_s = sum(event.later_s for event in timed) / (trace.steps - 1)
        else:
            spent_s = sum(event.host_s for event in timed)
        share = min(1.0, spent_s / whole_s) if whole_s and trace.steps > 1 else None
        costs.append(_Cost(spent_s, share))
    rule, name = suggestion.finding.rule, suggestion.finding.name
    if rule[:3] in ("PP1", "PP2", "PP4") or name in _TIMED:
        lines = [line for line in trace.lines if _is_at(suggestion, line["file"], line["line"])]
        if sum(line["samples"] for line in lines) >= _FEW_SAMPLES:
            share = min(1.0, sum(line["share"] for line in lines))
            costs.append(_Cost(share * whole_s, share))
    return max(costs, key=lambda cost: cost.seconds, default=None)


def _seen(
    suggestion: Suggestion,
    problems: Sequence[Problem],
    events: Sequence[TraceEvent],
    trace: Trace | None,
    cost: _Cost | None,
) -> Seen:
    if cost is not None:
        return "measured"
    if problems or events:
        return "counted"
    if trace is None:
        return "not seen"
    if any(_is_at(suggestion, line["file"], line["line"]) for line in trace.lines):
        return "ran"
    watched = [line["ran"] for line in trace.watched if _is_at(suggestion, line["file"], line["line"])]
    if any(watched):
        return "ran"
    return "did not run" if watched and all(ran is False for ran in watched) else "not seen"


def _evidence(
    problems: Sequence[Problem], events: Iterable[TraceEvent], trace: Trace | None
) -> tuple[str, ...]:
    if problems or trace is None:
        return tuple(dict.fromkeys(problem.what for problem in problems))
    return tuple(
        f"{event.what} {'happened once' if event.count == 1 else f'happened {event.count:,} times'}"
        f"{'' if not event.detail else f' ({event.detail})'}."
        for event in events
    )


def _bytes(suggestion: Suggestion, problems: Sequence[Problem], forecast: Forecast | None) -> int | None:
    if suggestion.finding.rule.startswith("PP3") and forecast is not None:
        here = [line.bytes for line in forecast.lines if _is_at(suggestion, line.file, line.line)]
        if here:
            return sum(here)
    return max((problem.bytes for problem in problems if problem.bytes), default=None)


def _code(file: str, line: int) -> str:
    return linecache.getline(file, line).strip() if file and not file.endswith(".ipynb") else ""
