"""Timing of a contest: all contenders in turn, then peaks and results in runs of their own.

Every contender is built and warmed up before the clock starts. The order rotates, and what is quick runs
once, untimed, before every timed run: a GPU that has waited for a slow contender is slower at first. The
number of rounds follows from the time limit, but is at least three. One that is slower than all others
together does not run among them, but in turn with the baseline alone. A peer that is missing, runs out of
memory, or fails becomes a row without a time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from pinchpoint.backends.base import Backend
from pinchpoint.core import machine
from pinchpoint.core.errors import Missing
from pinchpoint.core.records import now
from pinchpoint.studies.timing import Clock, ratio_interval, timing_of
from pinchpoint.systems.common.bench.cases import BenchCase, Contender, Contest, Run, Setup
from pinchpoint.systems.common.bench.records import Agreement, Comparison, Row

LEAST_ROUNDS = 3
QUICK_S = 0.1  # what takes less runs once, untimed, before every timed run
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Samples:
    """The seconds of a contender, and those of the baseline that ran in turn with it."""

    seconds: list[float]
    baseline: list[float]


def compare(
    case: BenchCase,
    setup: Setup,
    framework: Backend,
    *,
    repeats: int,
    limit_s: float,
    command: str = "",
    tell: Tell = lambda text: None,
    clock: Clock = time.perf_counter,
) -> Comparison:
    """Run one case. limit_s: the time for timing; compiling, peaks, and checks come on top."""
    start = time.perf_counter()
    contest = case.build(setup)
    runs: dict[str, Run] = {}
    durations: dict[str, float] = {}
    rows: dict[str, Row] = {}
    for contender in contest.contenders:
        tell(f"building {contender.name}")
        rows[contender.name] = _warm_up(contender, runs, durations, framework, setup.device)
        if contender.role == "baseline" and contender.name not in runs:
            raise RuntimeError(f"the baseline {contender.name} has {rows[contender.name].reason}")
    samples = _time_in_turn(contest, runs, durations, framework, setup.device, repeats, limit_s, tell, clock)
    for contender in contest.contenders:
        if contender.name in runs:
            rows[contender.name] = _timed_row(contender, samples[contender.name], rows[contender.name])
    for contender in contest.contenders:
        if contender.name in runs:
            tell(f"checking {contender.name}")
            rows[contender.name] = _examine(contender, runs[contender.name], rows[contender.name])
    names = list(runs)
    runs.clear()
    for contender in contest.contenders:
        if contender.name in names:
            tell(f"peak of {contender.name}")
            rows[contender.name] = _with_peak(contender, framework, setup.device, rows[contender.name])
    description = machine.describe()
    description["versions"] |= {name: version for name in contest.packages if (version := _version(name))}
    return Comparison(
        case.name,
        case.title,
        case.claim,
        case.axis,
        setup.size,
        {name: str(value) for name, value in contest.settings.items()},
        tuple(rows.values()),
        contest.floor,
        contest.notes,
        "",
        time.perf_counter() - start,
        command,
        description,
        now(),
    )


def _warm_up(
    contender: Contender,
    runs: dict[str, Run],
    durations: dict[str, float],
    framework: Backend,
    device: str,
) -> Row:
    """Build a contender, run it until nothing compiles, and add it to `runs` with the time of its last run.

    The row says why that fails, if it does.
    """
    row = Row(contender.name, contender.role, note=contender.note, work=contender.work)
    try:
        run = contender.make()
        for _ in range(contender.warmup):
            start = time.perf_counter()
            framework.wait(device, run())
            durations[contender.name] = time.perf_counter() - start
    except Missing as error:
        return replace(row, state="not installed", reason=error.what)
    except Exception as error:  # one contender must not lose the others; the row has the reason
        if framework.is_oom(error):
            return replace(row, state="out of memory", reason=_first_line(error))
        return replace(row, state="failed", reason=f"{type(error).__name__}: {_first_line(error)}")
    runs[contender.name] = run
    return row


def _time_in_turn(
    contest: Contest,
    runs: dict[str, Run],
    durations: dict[str, float],
    framework: Backend,
    device: str,
    repeats: int,
    limit_s: float,
    tell: Tell,
    clock: Clock,
) -> dict[str, Samples]:
    """Return the seconds of every contender, and those of the baseline that ran in turn with it."""
    order = [contender.name for contender in contest.contenders if contender.name in runs]
    work = {contender.name: contender.work for contender in contest.contenders}

    def rounds_of(names: list[str], rounds: int) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                if durations[name] < QUICK_S:
                    runs[name]()  # clocks and caches recover from whoever ran before
                framework.wait(device)
                start = clock()
                framework.wait(device, runs[name]())
                seconds[name].append((clock() - start) / work[name])
        return seconds

    together = _affordable(order, durations, repeats, limit_s)
    round_s = max(sum(durations[name] for name in together), 1e-9)
    rounds = min(repeats, max(LEAST_ROUNDS, int(limit_s / round_s)))
    tell(f"timing {len(together)} in turn, {rounds} rounds of {round_s:.2g} s")
    gc.collect()
    gc.disable()  # a collection would be part of whoever runs at that moment
    try:
        seconds = rounds_of(together, rounds)
        samples = {name: Samples(values, seconds[order[0]]) for name, values in seconds.items()}
        for name in order:
            if name not in together:
                tell(f"timing {name} in turn with {order[0]}, {LEAST_ROUNDS} rounds")
                pair = rounds_of([order[0], name], LEAST_ROUNDS)
                samples[name] = Samples(pair[name], pair[order[0]])
    finally:
        gc.enable()
    return samples


def _affordable(order: list[str], durations: dict[str, float], rounds: int, limit_s: float) -> list[str]:
    """Return who runs in turn: without the slowest, as long as that gives the others more rounds.

    The baseline is always among them.
    """
    still = list(order)
    while len(still) > 2 and rounds * sum(durations[name] for name in still) > limit_s:
        slowest = max(still[1:], key=lambda name: durations[name])
        others = [name for name in still if name != slowest]
        if durations[slowest] < sum(durations[name] for name in others):
            break
        still = others
    return still


def _timed_row(contender: Contender, samples: Samples, row: Row) -> Row:
    timing = timing_of(samples.seconds)
    row = replace(
        row,
        seconds=timing.median_s,
        seconds_low=timing.low_s,
        seconds_high=timing.high_s,
        runs=timing.runs,
    )
    if contender.role == "baseline":
        return row
    ratio, low, high = ratio_interval(samples.baseline, samples.seconds)
    return replace(row, ratio=ratio, ratio_low=low, ratio_high=high)


def _examine(contender: Contender, run: Run, row: Row) -> Row:
    """Compare the result of another run, and measure what else the contender offers.

    An error is recorded: the time has been measured already.
    """
    if contender.check is not None:
        try:
            row = replace(row, agreement=contender.check(run()))
        except Exception as error:
            row = replace(row, agreement=Agreement(f"not compared: {_first_line(error)}"))
    if contender.extras is not None:
        try:
            row = replace(row, extras=contender.extras(run))
        except Exception as error:
            row = replace(row, note=f"{row.note}; not measured further: {_first_line(error)}")
    return row


def _with_peak(contender: Contender, framework: Backend, device: str, row: Row) -> Row:
    try:
        return replace(row, peak_allocated_bytes=_peak(contender, framework, device))
    except Exception as error:  # the time has been measured already
        return replace(row, note=f"{row.note}; no peak: {_first_line(error)}")


def _peak(contender: Contender, framework: Backend, device: str) -> int | None:
    """Return the most bytes allocated during a second run, with no other contender in memory."""
    gc.collect()
    if contender.peak is not None:
        return contender.peak()
    run = contender.make()
    framework.wait(device, run())
    if device == "cpu":
        return framework.account(run)
    framework.reset_peak(device)
    framework.wait(device, run())
    return framework.peaks(device).allocated_bytes


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _version(package: str) -> Any:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None
