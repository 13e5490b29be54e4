"""Timing of steps: medians with intervals, two steps timed in turn, and the interval of their ratio.

The clock is read only after the device has finished: `wait` is called with the result of the step, and
with None before the first reading. Pass `lambda result: backend.wait(device, result)`. The caller
builds the inputs, outside the clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

Run = Callable[[], Any]
Wait = Callable[[Any], None]
Clock = Callable[[], float]

RESAMPLES = 2000


@dataclass(frozen=True)
class Timing:
    """The seconds of one step: the median of `runs` runs and the 95 % interval of that median."""

    median_s: float
    low_s: float
    high_s: float
    runs: int


def measure(
    run: Run, *, wait: Wait, warmup: int = 5, repeats: int = 30, clock: Clock = time.perf_counter
) -> Timing:
    """Time `run` alone, after `warmup` untimed calls."""
    _warm(run, wait, warmup)
    return timing_of([_once(run, wait, clock) for _ in range(repeats)])


def interleave(
    a: Run, b: Run, *, wait: Wait, warmup: int = 5, repeats: int = 30, clock: Clock = time.perf_counter
) -> tuple[list[float], list[float]]:
    """Return the seconds of each call of two steps run in turn, A B B A, so that drift affects both alike."""
    _warm(a, wait, warmup)
    _warm(b, wait, warmup)
    times_a: list[float] = []
    times_b: list[float] = []
    for turn in range(repeats):
        # The second step of a pair benefits from the caches of the first, so the order alternates.
        pair = ((a, times_a), (b, times_b))
        for run, times in pair if turn % 2 == 0 else reversed(pair):
            times.append(_once(run, wait, clock))
    return times_a, times_b


def timing_of(seconds: Sequence[float]) -> Timing:
    """Return the median and its distribution-free 95 % interval, from binomial order statistics.

    Fewer than 6 runs cannot give 95 %; the interval is then the whole range.
    """
    ordered = sorted(seconds)
    low = _rank(len(ordered))
    return Timing(median(ordered), ordered[low], ordered[-1 - low], len(ordered))


def ratio_interval(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> tuple[float, float, float]:
    """Return median(a) / median(b) with its bootstrap 95 % interval.

    Lists of equal length are resampled as pairs, because run i of both lists of `interleave` saw the
    same drift.
    """
    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    rng = np.random.default_rng(seed)
    picks_a = rng.integers(len(left), size=(RESAMPLES, len(left)))
    picks_b = picks_a if len(left) == len(right) else rng.integers(len(right), size=(RESAMPLES, len(right)))
    ratios = np.median(left[picks_a], axis=1) / np.median(right[picks_b], axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(np.median(left) / np.median(right)), float(low), float(high)


def _warm(run: Run, wait: Wait, times: int) -> None:
    wait(None)
    for _ in range(times):
        wait(run())


def _once(run: Run, wait: Wait, clock: Clock) -> float:
    start = clock()
    wait(run())
    return clock() - start


def _rank(runs: int) -> int:
    """Return the largest k for which [ordered[k], ordered[-1 - k]] covers the median with at least 95 %."""
    below, best = 0.0, 0
    for k in range(runs // 2):
        below += math.comb(runs, k) / 2**runs
        if 2 * below > 0.05:
            break
        best = k
    return best
