"""`find_problems`: what is worth changing in a run, ranked by what it cost."""

from __future__ import annotations

from collections.abc import Iterator

from pinchpoint.core.records import Problem, Trace, TraceEvent
from pinchpoint.core.units import show_count

_STARVED = 0.15  # share of the step spent on waiting for data
_BOUND = 0.5  # share of the step in which the device kept up with the host


def find_problems(trace: Trace, *, near_s: float = 0.0) -> tuple[Problem, ...]:
    """near_s: how long the device kept up with the host, so that it waited for launches."""
    whole = sum(phase.host_s for phase in trace.phases)
    problems = [*_waits(trace, whole), *_cleanups(trace, whole), *_starvation(trace, whole)]
    return tuple(sorted(problems, key=lambda problem: (-(problem.cost_s or 0.0), -problem.count)))


def _is_in_loop(trace: Trace, event: TraceEvent) -> bool:
    """Whether an event happened in at least half of the steps, so that it belongs to the loop."""
    return trace.steps > 1 and event.steps >= max(2, trace.steps / 2)


def _per_step(event: TraceEvent) -> str:
    each = event.count / max(event.steps, 1)
    return "once per step" if each <= 1 else f"{each:,.0f} times per step"


def _waits(trace: Trace, whole: float) -> Iterator[Problem]:
    is_real = trace.device == "cuda"
    for event in trace.events:
        if event.kind != "wait" or not _is_in_loop(trace, event):
            continue
        waits = "waits for the device" if is_real else "would wait for a GPU"
        yield Problem(
            kind="wait",
            what=f"{event.what} {waits} {_per_step(event)}.",
            hint="Keep the value on the device; read it once per many steps, or all values at once.",
            file=event.file,
            line=event.line,
            cost_s=event.host_s if is_real else None,
            share=event.host_s / whole if is_real and whole else None,
            count=event.count,
        )


def _cleanups(trace: Trace, whole: float) -> Iterator[Problem]:
    for event in trace.events:
        if event.kind == "cleanup" and _is_in_loop(trace, event):
            yield Problem(
                kind="cleanup",
                what=f"{event.what} runs {_per_step(event)}.",
                hint="Call it once before the loop, or not at all: torch reuses freed memory by itself.",
                file=event.file,
                line=event.line,
                cost_s=event.host_s,
                share=event.host_s / whole if whole else None,
                count=event.count,
            )


def _starvation(trace: Trace, whole: float) -> Iterator[Problem]:
    data = next((phase for phase in trace.phases if phase.name == "data"), None)
    if data is None or data.share < _STARVED or trace.steps < 3 or not trace.loaders:
        return
    loader = max(trace.loaders, key=lambda facts: facts["host_s"])
    workers = loader["workers"]
    yield Problem(
        kind="data",
        what=f"The loop waits for its data loader ({show_count(workers, 'worker')}) {data.share:.0%} of the "
        "time.",
        hint="Raise num_workers, or load and transform less per sample."
        if workers
        else "Pass num_workers=2 or more to the DataLoader, so that data is loaded during the step.",
        file=loader["file"],
        line=loader["line"],
        cost_s=data.host_s,
        share=data.share,
        count=loader["batches"],
    )
