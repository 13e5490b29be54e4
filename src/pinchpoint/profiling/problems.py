"""`find_problems`: what is worth changing in a run, ranked by what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from pinchpoint.backends.recording.source_lines import VALIDATION
from pinchpoint.backends.recording.steps import BUILT_AGAIN
from pinchpoint.core.records import Problem, Trace, TraceEvent
from pinchpoint.core.units import show_bytes, show_count

_STARVED = 0.15  # share of the step spent on waiting for data
_STARVED_S = 0.002  # and seconds per step: no loader is faster than that of a tiny example
_BOUND = 0.5  # share of the step in which the device kept up with the host
_MANY = 10  # times that a function is built at one line of a program without steps
_SMALL = 0.005  # share of the step below which a copy is not worth a word


@dataclass(frozen=True)
class KeptGraphs:
    """Graphs of earlier steps that are alive, the variables that hold them, and the line of `backward()`."""

    alive: int
    holders: tuple[str, ...]
    file: str
    line: int


def find_problems(
    trace: Trace, *, near_s: float = 0.0, kept: KeptGraphs | None = None
) -> tuple[Problem, ...]:
    """near_s: how long the device kept up with the host, so that it waited for launches."""
    whole = sum(phase.host_s for phase in trace.phases)
    problems = [
        *_waits(trace, whole),
        *_copies(trace, whole),
        *_cleanups(trace, whole),
        *_compilations(trace, whole),
        *_starvation(trace),
        *_launches(trace, whole, near_s),
        *_growth(trace, kept),
        *_rebuilds(trace),
        *_gradients(trace),
    ]
    return tuple(sorted(problems, key=lambda problem: -(problem.cost_s or 0.0)))


def _is_in_loop(trace: Trace, event: TraceEvent) -> bool:
    """Whether an event happened in at least half of the steps, so that it belongs to the loop."""
    return trace.steps > 1 and event.steps >= max(2, trace.steps / 2)


def _per_step(event: TraceEvent, count: int | None = None) -> str:
    each = (event.count if count is None else count) / max(event.steps, 1)
    return "once per step" if each < 1.5 else f"{each:,.0f} times per step"


def _share(trace: Trace, event: TraceEvent, whole: float) -> float | None:
    """The share of an event in the steps after the first. It may also have happened after them."""
    if not whole:
        return None
    steps = event.later_steps
    return min(1.0, event.later_s / max(steps, 1) * min(steps, trace.steps - 1) / whole)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _waits(trace: Trace, whole: float) -> Iterator[Problem]:
    is_real = trace.device == "cuda" or trace.framework == "jax"
    events = [event for event in trace.events if event.kind == "wait" and _is_in_loop(trace, event)]
    events.sort(key=lambda event: (event.file, event.line, -event.host_s, -event.count))
    # Which of the tensors on the CPU would be on the GPU is not known here.
    unless = "" if is_real else " A tensor that stays on the CPU need not change."
    for (file, line), group in groupby(events, key=lambda event: (event.file, event.line)):
        here = list(group)
        cost_s = sum(event.host_s for event in here)
        names = list(dict.fromkeys(event.what for event in here))
        waits = (
            f"{'wait' if len(names) > 1 else 'waits'} for the device" if is_real else "would wait for a GPU"
        )
        inside = next((event.detail for event in here if event.detail), "")
        yield Problem(
            kind="wait",
            what=f"{' and '.join(names)} {waits} {_per_step(here[0])}{inside and f', {inside}'}.",
            hint=_wait_hint(inside) + unless,
            file=file,
            line=line,
            cost_s=cost_s if is_real else None,
            share=min(1.0, sum(_share(trace, event, whole) or 0.0 for event in here)) if is_real else None,
            count=max(event.count for event in here),
        )


def _wait_hint(inside: str) -> str:
    """What to do about a wait. inside: the library that waits; empty if it is the user's own line."""
    if not inside:
        return "Keep the value on the device; read it once per many steps, or all values at once."
    if VALIDATION in inside:
        return "Pass validate_args=False to the distribution."
    if "gcn_norm" in inside:
        return "If the graph never changes, pass cached=True to the convolution."
    return "The library waits: look for an argument that gives it the value, or that keeps the result."


def _copies(trace: Trace, whole: float) -> Iterator[Problem]:
    for event in trace.events:
        if event.kind != "copy" or not _is_in_loop(trace, event):
            continue
        size = (event.bytes or 0) // event.count
        common = {
            "file": event.file,
            "line": event.line,
            "cost_s": event.host_s,
            "share": _share(trace, event, whole),
            "bytes": event.bytes,
            "count": event.count,
        }
        if event.repeated >= max(2, event.steps / 2):
            yield Problem(
                kind="copy again",
                what=f"The same data ({show_bytes(size)}) is copied {event.what} "
                f"{_per_step(event, event.repeated)}, unchanged.",
                hint="Copy it once before the loop and keep the copy.",
                **common,
            )
        elif "pageable" in event.detail and (_share(trace, event, whole) or 0.0) >= _SMALL:
            yield Problem(
                kind="copy",
                what=f"{show_bytes(size)} of pageable memory is copied {event.what} {_per_step(event)}; "
                "the program waits for it.",
                hint="Pass pin_memory=True to the DataLoader and non_blocking=True to the copy.",
                **common,
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
                share=_share(trace, event, whole),
                count=event.count,
            )


def _compilations(trace: Trace, whole: float) -> Iterator[Problem]:
    for event in trace.events:
        common = {
            "file": event.file,
            "line": event.line,
            "cost_s": event.host_s or None,
            "share": _share(trace, event, whole) if event.host_s and event.steps > 1 else None,
            "count": event.count,
        }
        if event.kind == "recompile":
            # JAX compiles each operation outside jax.jit for each shape: no fault, if it is not in the loop.
            if not event.detail and event.steps < 2 and event.count < _MANY:
                continue
            why = event.detail or "an operation outside jax.jit is compiled for each new shape"
            is_rebuilt = BUILT_AGAIN in why
            yield Problem(
                kind="recompile",
                what=f"{event.what} was compiled again {_times(event.count)}: {why.rstrip('.')}.",
                hint="Build the function once, outside the loop."
                if is_rebuilt
                else "Keep shapes, types and Python values the same in every step, or mark them as dynamic.",
                **common,
            )
        elif event.kind == "build" and (_is_in_loop(trace, event) or event.count >= _MANY):
            often = _per_step(event) if _is_in_loop(trace, event) else f"{event.count:,} times"
            yield Problem(
                kind="recompile",
                what=f"{event.what} is built {often}, and JAX traces and compiles each anew.",
                hint="Build the function once, outside the loop, and jit it.",
                **common,
            )


def _starvation(trace: Trace) -> Iterator[Problem]:
    data = next((phase for phase in trace.phases if phase.name == "data"), None)
    if data is None or data.share < _STARVED or trace.steps < 3 or not trace.loaders:
        return
    if data.host_s / (trace.steps - 1) < _STARVED_S:
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


def _launches(trace: Trace, whole: float, near_s: float) -> Iterator[Problem]:
    if trace.device == "cuda" and trace.steps > 2 and whole and near_s / whole >= _BOUND:
        yield Problem(
            kind="launch bound",
            what=f"For {near_s / whole:.0%} of the time the device finishes its work as fast as the program "
            "launches it, so that it is idle between kernels.",
            hint="Use larger batches, torch.compile, or CUDA graphs, so that each launch does more work.",
            cost_s=None,
            share=near_s / whole,
        )


def _growth(trace: Trace, kept: KeptGraphs | None) -> Iterator[Problem]:
    growth = (trace.memory or {}).get("growth_bytes_per_step")
    if kept is not None and kept.alive >= 3:
        by = " by " + " and ".join(kept.holders) if kept.holders else ""
        yield Problem(
            kind="growth",
            what=f"The graphs of {kept.alive:,} earlier steps are kept alive{by}.",
            hint="Keep values without their graphs: total += loss.detach(), losses.append(loss.detach()).",
            file=kept.file,
            line=kept.line,
            bytes=growth if growth and trace.device == "cuda" else None,
            count=kept.alive,
        )
    elif growth and trace.device == "cuda" and growth * trace.steps > 2**20:
        yield Problem(
            kind="growth",
            what=f"Allocated memory grows by {show_bytes(growth)} per step.",
            hint="Look for lists or attributes that collect tensors; store detached copies on the host.",
            bytes=growth,
        )


def _rebuilds(trace: Trace) -> Iterator[Problem]:
    for event in trace.events:
        if event.kind == "rebuild" and event.steps >= max(2, (trace.steps - 1) / 2):
            yield Problem(
                kind="rebuild",
                what=f"{event.what} is built again {_per_step(event)}.",
                hint="Build it once before the loop.",
                file=event.file,
                line=event.line,
                count=event.count,
            )


def _gradients(trace: Trace) -> Iterator[Problem]:
    rows = [row for row in trace.without_gradient if not row["reason"].startswith("requires_grad")]
    if not rows or trace.step_is != "optimizer step":
        return
    names = [row["name"] or f"a parameter of shape {tuple(row['shape'])}" for row in rows[:3]]
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    one = len(rows) == 1
    yield Problem(
        kind="no gradient",
        what=f"{', '.join(names)}{more} never {'gets' if one else 'get'} a gradient.",
        hint="Look for no_grad, detach or .data on the way to the loss; or leave "
        f"{'it' if one else 'them'} out of the optimizer.",
        count=len(rows),
    )
