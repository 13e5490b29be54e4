"""`compare`: the times of a script before and after a change, measured in turn.

Both versions run at the same time and take turns: each waits between its steps while the other runs a block
of them. A block counts as one measurement, and two neighbouring blocks are a pair. The pairs are spread over
at least two starts of each version, because the steps of one start share its state, such as the layout of its
memory. A script that cannot take turns runs from its start for every measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from pinchpoint.core.errors import TargetFailed
from pinchpoint.core.records import Trace
from pinchpoint.studies.timing import timing_of

MIN_PAIRS = 6  # with fewer, even the whole range of the ratios covers the median with less than 95 %
_PAIRS = 10  # of blocks; of runs MIN_PAIRS, because each takes a start of the script
_STARTS = 2
_FIRST_STEPS = 4  # after the first one, which show how long a step takes
_WARMUP = 1  # steps of each block that are not timed
_BLOCK_S = 1.0
_BLOCK_STEPS = (2, 100)
_NAMES = ("before", "after")
_STEPS_THAT_PAUSE = ("optimizer step", "jitted call")


class Script(Protocol):
    """A script that runs a block of steps at each request; see `profiling.paused_script`."""

    def wait_until_ready(self, limit_s: float) -> bool: ...
    def run_block(self, *, warmup: int, steps: int, limit_s: float) -> float | None: ...
    def end(self) -> Trace | None: ...


# Both take 0 for the version before, and 1 for that after.
Run = Callable[[int], Trace]
Start = Callable[[int], Script]


@dataclass(frozen=True)
class Times:
    """What was measured: one number of each side per pair, in order."""

    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    timed: str  # step or run
    pairs_of_starts: tuple[int, ...] = ()  # of blocks: how many pairs each start of both versions gave
    block_steps: int = 0
    note: str = ""  # why whole runs were compared


@dataclass(frozen=True)
class Failure:
    """Why there is nothing to compare; side: the version that failed, if it was one of them."""

    reason: str
    side: int | None = None


class _CannotTakeTurns(Exception):
    """Blocks of steps cannot be compared; the text says why."""


def compare(
    run: Run,
    start: Start,
    *,
    pairs: int | None,
    trace: Trace | None,
    time_limit_s: float,
    on_status: Callable[[str], None] = lambda stage: None,
    clock: Callable[[], float] = time.monotonic,
) -> Times | Failure:
    """Measure both versions; if they cannot take turns, by whole runs, which also tell why one fails.

    trace: of an earlier run of the version before, which tells how many steps there are.
    """
    try:
        return _compare_blocks(start, pairs or _PAIRS, trace, time_limit_s, on_status, clock)
    except _CannotTakeTurns as reason:
        note = f"Whole runs of the script were compared, because {reason}."
    return _compare_runs(run, pairs or MIN_PAIRS, note, on_status)


def _compare_blocks(
    start: Start,
    pairs: int,
    trace: Trace | None,
    limit_s: float,
    on_status: Callable[[str], None],
    clock: Callable[[], float],
) -> Times:
    last_step = _check_turns(trace)
    per_start = -(-pairs // _STARTS)
    _block_steps(_BLOCK_S, per_start, last_step)  # before anything is started
    times: tuple[list[float], list[float]] = ([], [])
    counts: list[int] = []
    steps = 0
    while len(times[0]) < pairs and len(counts) < pairs:
        on_status(f"start {len(counts) + 1} of both versions")
        scripts: list[Script] = []
        is_first = not counts
        measured = len(times[0])
        try:
            scripts += [start(0)]
            scripts += [start(1)]
            if not all(script.wait_until_ready(limit_s) for script in scripts):
                raise _CannotTakeTurns(_why(scripts, "did not come to the end of their first step"))
            first = [_block(each, _FIRST_STEPS, limit_s) for each in scripts]
            if is_first and None not in first:
                steps = _block_steps(max(value or 0.0 for value in first), per_start, last_step)
            give_up = clock() + 2 * limit_s
            # The first block of each is not counted: what is loaded late and caches settle in it.
            is_running = None not in first and None not in [_block(each, steps, limit_s) for each in scripts]
            while (
                is_running
                and len(times[0]) - measured < per_start
                and len(times[0]) < pairs
                and clock() < give_up
            ):
                pair = len(times[0])
                on_status(f"pair {pair + 1} of {pairs}, {steps} steps of each")
                # The order alternates, so that what changes over time affects both alike.
                order = (0, 1) if pair % 2 == 0 else (1, 0)
                values = {side: _block(scripts[side], steps, limit_s) for side in order}
                is_running = None not in values.values()
                if is_running:
                    for side in order:
                        times[side].append(values[side] or 0.0)
        except BaseException:
            _end(scripts)
            raise
        failure = _failure(_end(scripts))
        if failure:
            raise _CannotTakeTurns(failure)
        counts.append(len(times[0]) - measured)
        if not counts[-1]:
            raise _CannotTakeTurns("it has too few steps, or they take too long, for blocks of them")
    return Times(tuple(times[0]), tuple(times[1]), "step", tuple(counts), steps)


def _check_turns(trace: Trace | None) -> int | None:
    """The number of steps of a script that ends by itself. Raises if it cannot wait between its steps."""
    if trace is None:
        return None
    if trace.step_is not in _STEPS_THAT_PAUSE or not trace.steps:
        raise _CannotTakeTurns("it takes no optimizer steps and calls no jitted function")
    if trace.framework == "jax" and trace.device == "cuda":
        raise _CannotTakeTurns("JAX reserves most of the memory of a GPU for one process")
    return trace.steps if trace.ended in ("finished", "exited") else None


def _block_steps(step_s: float, blocks: int, last_step: int | None) -> int:
    """So many steps that a block takes about a second, and that all blocks fit into the run of the script."""
    low, high = _BLOCK_STEPS
    steps = min(max(math.ceil(_BLOCK_S / step_s) if step_s > 0 else high, low), high)
    if last_step is not None:
        steps = min(steps, (last_step - 1 - _WARMUP - _FIRST_STEPS) // (blocks + 1) - _WARMUP)
    if steps < 1:
        raise _CannotTakeTurns(f"it has only {last_step} steps")
    return steps


def _block(script: Script, steps: int, limit_s: float) -> float | None:
    """Seconds per step, without the first ones; None if the script ended."""
    seconds = script.run_block(warmup=_WARMUP, steps=steps, limit_s=limit_s)
    return None if seconds is None else seconds / steps


def _end(scripts: Sequence[Script]) -> list[Trace | None]:
    return [script.end() for script in scripts]


def _why(scripts: list[Script], otherwise: str) -> str:
    """What kept the scripts from running; they are ended."""
    traces = _end(scripts)
    scripts.clear()
    return _failure(traces) or f"its two versions {otherwise}"


def _failure(traces: Sequence[Trace | None]) -> str:
    for side, trace in enumerate(traces):
        reason = "it ended its process" if trace is None else failure_of(trace)
        if reason:
            return f"its version {_NAMES[side]} failed beside the other: {reason.rstrip('.')}"
    return ""


def failure_of(trace: Trace) -> str:
    """What went wrong in a run; empty if nothing did."""
    if trace.ended == "interrupted":
        raise KeyboardInterrupt
    if trace.error:
        return trace.error
    if trace.exit_code:
        return f"it exited with {trace.exit_code}"
    if trace.ended == "timed out" and not trace.step_times:
        return "it reached the time limit before its second step"
    return ""


def _compare_runs(run: Run, pairs: int, note: str, on_status: Callable[[str], None]) -> Times | Failure:
    times: tuple[list[float], list[float]] = ([], [])
    timed = ""
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            on_status(f"pair {pair + 1} of {pairs}, {_NAMES[side]}")
            try:
                trace = run(side)
            except TargetFailed as error:
                return Failure(error.what, side)
            if reason := failure_of(trace):
                return Failure(reason, side)
            seconds = trace.step_times.get("median_s")
            kind = "run" if seconds is None else "step"
            if timed and kind != timed:
                return Failure("Some runs had steps and others had none.")
            timed = kind
            times[side].append(trace.took_s if seconds is None else seconds)
    return Times(tuple(times[0]), tuple(times[1]), timed, note=note)


def judge(times: Times) -> dict[str, Any]:
    """The verdict, its reason, and the numbers behind it, as the fields of a Gain."""
    before, after = times.before_s, times.after_s
    if min(*before, *after) <= 0:
        return {
            "verdict": "not compared",
            "reason": f"A {times.timed} is shorter than the clock can resolve.",
        }
    ratios = [a / b for a, b in zip(before, after, strict=True)]
    ratio = timing_of(ratios)
    verdict, reason = "no measurable change", "The 95 % interval of the speed-up includes 1."
    if len(before) < MIN_PAIRS:
        verdict = "too few pairs"
        reason = f"{len(before)} pairs prove nothing; at least {MIN_PAIRS} are needed."
    elif (ratio.low_s > 1.0 or ratio.high_s < 1.0) and _starts_disagree(ratios, times.pairs_of_starts):
        reason = "One start of the script is faster after the change, and another is slower."
    elif ratio.low_s > 1.0:
        verdict, reason = "faster", "The 95 % interval of the speed-up is above 1."
    elif ratio.high_s < 1.0:
        verdict, reason = "slower", "The 95 % interval of the speed-up is below 1."
    return {
        "verdict": verdict,
        "reason": reason,
        "timed": times.timed,
        "before_s": before,
        "after_s": after,
        "pairs_of_starts": times.pairs_of_starts,
        "block_steps": times.block_steps,
        "note": times.note,
        "speedup": ratio.median_s,
        "speedup_low": ratio.low_s,
        "speedup_high": ratio.high_s,
    }


def _starts_disagree(ratios: Sequence[float], counts: Sequence[int]) -> bool:
    medians, begin = [], 0
    for count in counts:
        medians.append(median(ratios[begin : begin + count]))
        begin += count
    return bool(medians) and min(medians) < 1.0 < max(medians)
