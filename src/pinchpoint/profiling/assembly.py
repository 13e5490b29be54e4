"""`assemble`: from what a recorder collected to a Trace."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import line_of
from pinchpoint.backends.recording.steps import EVALUATION, FORWARD, PHASES, Step, Steps, Times
from pinchpoint.core.records import Trace, TraceEvent, TracePhase
from pinchpoint.profiling.problems import KeptGraphs, find_problems

_ROWS = 400  # steps of the timeline in a record
_EVENTS = 200  # source lines in a record
_LINES = 1000  # sampled lines in a record


def assemble(
    recorder: Recorder,
    *,
    target: str,
    ended: str,
    exit_code: int = 0,
    error: str = "",
    notes: Sequence[str] = (),
) -> Trace:
    """Build the Trace of a run that is over."""
    steps = recorder.finish()
    count = len(steps.host_ns)
    infer_only = steps.kind in (None, "module call")
    durations = [value / 1e9 for value in steps.host_ns[1:]]
    trace = Trace(
        target=target,
        framework=_framework(recorder, steps.kind),
        device=recorder.device,
        ended=ended,
        steps=count,
        step_is=steps.kind or "step",
        took_s=(recorder.end_ns - recorder.start_ns) / 1e9,
        setup_s=((steps.setup_end_ns or recorder.end_ns) - recorder.start_ns) / 1e9,
        first_step_s=steps.host_ns[0] / 1e9 if count else None,
        step_times=_spread(durations),
        phases=_phases(steps.later, infer_only=infer_only),
        events=_events(recorder),
        problems=(),
        timeline=tuple(_timeline(recorder, steps, infer_only=infer_only)),
        memory=_memory(recorder, steps),
        loaders=tuple(
            {
                "file": file,
                "line": line,
                **{key: value for key, value in facts.items() if key != "host_ns"},
                "host_s": facts["host_ns"] / 1e9,
            }
            for (file, line), facts in recorder.parts.get("loaders", {}).items()
            if facts["batches"]
        ),
        without_gradient=tuple(recorder.parts.get("without_gradient", ())),
        idle_s=steps.later.idle_ns / 1e9 if recorder.device == "cuda" and count > 1 else None,
        exit_code=exit_code,
        error=error,
        light=recorder.light,
        lines=_lines(recorder, steps),
        watched=_watched(recorder),
        notes=(*recorder.notes, *notes, *_notes(recorder, count)),
    )
    return _with_problems(trace, recorder, steps)


def _with_problems(trace: Trace, recorder: Recorder, steps: Steps) -> Trace:
    kept = recorder.parts.get("kept_graphs")
    if kept is not None:
        file, line, _ = line_of(kept["place"])
        kept = KeptGraphs(kept["alive"], tuple(kept["holders"]), file, line)
    return replace(trace, problems=find_problems(trace, near_s=steps.later.near_ns / 1e9, kept=kept))


def _memory(recorder: Recorder, steps: Steps) -> dict[str, Any] | None:
    memory = recorder.parts.get("memory")
    if memory is None:
        return None
    return {**memory, "growth_bytes_per_step": growth_per_step(steps.memory_bytes)}


def _lines(recorder: Recorder, steps: Steps) -> tuple[dict[str, Any], ...]:
    """The lines that were on the stack in later steps, or in the whole run if it has none.

    The second step may be slower than the others, because lines are watched in it (see `LineWatch`).
    """
    sampler = recorder.parts.get("line_samples")
    if sampler is None:
        return ()
    first = 2 if len(steps.steps) > 3 else 1
    total, counts = sampler.shares(steps.steps[first].start_ns if len(steps.steps) > first else 0)
    return tuple(
        {"file": file, "line": line, "samples": count, "share": count / total}
        for (file, line), count in sorted(counts.items(), key=lambda pair: -pair[1])[:_LINES]
    )


def _watched(recorder: Recorder) -> tuple[dict[str, Any], ...]:
    watch = recorder.parts.get("line_watch")
    return () if watch is None else tuple(watch.result())


def growth_per_step(sizes: Sequence[int]) -> int | None:
    """How much memory each step adds in the long run: the slope over the later three quarters.

    None if there are too few steps. 0 unless each third of them is above the one before, as noise is not.
    """
    later = [size for size in sizes[max(3, len(sizes) // 4) :] if size >= 0]
    third = len(later) // 3
    if third < 2:
        return None
    lows = [min(later[at * third : (at + 1) * third]) for at in range(3)]
    return max(0, round((lows[2] - lows[0]) / (2 * third))) if lows[0] < lows[1] < lows[2] else 0


def _framework(recorder: Recorder, kind: str | None) -> str:
    """The framework that takes the steps; a JAX script may load its data with torch."""
    if kind is None:
        return " and ".join(sorted(recorder.frameworks))
    return "jax" if kind == "jitted call" else "torch"


def _notes(recorder: Recorder, count: int) -> list[str]:
    if not recorder.frameworks:
        return ["The script imported neither torch nor JAX, so there is nothing to observe."]
    if not count:
        return [
            "No step was observed: a step ends with optimizer.step(), a backward pass, or a call of a module."
        ]
    if count == 1:
        return ["Only one step was observed; later steps are usually faster than the first."]
    return []


def _spread(durations: Sequence[float]) -> dict[str, float]:
    if not durations:
        return {}
    ordered = sorted(durations)
    last = len(ordered) - 1
    return {
        "median_s": statistics.median(ordered),
        "mean_s": statistics.fmean(ordered),
        "low_s": ordered[round(0.1 * last)],
        "high_s": ordered[round(0.9 * last)],
        "longest_s": ordered[-1],
    }


def _named(times: dict[str, Any], *, infer_only: bool) -> dict[str, float]:
    """Seconds by phase. In a program that never trains, the calls of its model are no evaluation."""
    seconds: dict[str, float] = {}
    for name, value in times.items():
        key = FORWARD if infer_only and name == EVALUATION else name
        seconds[key] = seconds.get(key, 0.0) + value / 1e9
    return seconds


def _phases(times: Times, *, infer_only: bool) -> tuple[TracePhase, ...]:
    host = _named(times.host_ns, infer_only=infer_only)
    device = _named(times.device_ns, infer_only=infer_only)
    whole = sum(host.values()) or 1.0
    order = [name for name in PHASES if name in host] + [name for name in host if name not in PHASES]
    return tuple(
        TracePhase(name, host[name], host[name] / whole, device.get(name)) for name in order if host[name] > 0
    )


def _events(recorder: Recorder) -> tuple[TraceEvent, ...]:
    merged: dict[tuple[str, str, str, int], TraceEvent] = {}
    for (kind, what, place), line in recorder.events.items():
        file, number, code = line_of(place)
        key = (kind, what, file, number)
        before = merged.get(key)
        merged[key] = TraceEvent(
            kind,
            what,
            file,
            number,
            line.count + (before.count if before else 0),
            max(line.steps, before.steps if before else 0),
            line.spent_ns / 1e9 + (before.host_s if before else 0.0),
            max(line.longest_ns / 1e9, before.longest_s if before else 0.0),
            line.phase,
            code,
            (line.bytes + ((before.bytes or 0) if before else 0)) or None,
            line.detail or (before.detail if before else ""),
            line.repeated + (before.repeated if before else 0),
            line.first_ns / 1e9 + (before.first_s if before else 0.0),
        )
    ordered = sorted(merged.values(), key=lambda event: (-event.host_s, -event.count))
    return tuple(ordered[:_EVENTS])


def _timeline(recorder: Recorder, steps: Steps, *, infer_only: bool) -> list[dict[str, Any]]:
    every = max(1, -(-len(steps.steps) // _ROWS))

    def row(number: int, step: Step) -> dict[str, Any]:
        return {
            "step": number,
            "start_s": (step.start_ns - recorder.start_ns) / 1e9,
            "host_s": step.host_ns / 1e9,
            "device_s": sum(step.times.device_ns.values()) / 1e9 if step.times.device_ns else None,
            "phases": _named(step.times.host_ns, infer_only=infer_only),
            "memory_bytes": step.memory_bytes,
        }

    return [row(number, step) for number, step in enumerate(steps.steps) if number % every == 0]
