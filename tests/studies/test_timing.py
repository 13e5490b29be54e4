"""Timing: the clock, the order of runs, and intervals that cover as often as claimed."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.studies.timing import interleave, measure, ratio_interval, timing_of


class Bench:
    """A fake clock that steps advance, and a log of the calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now

    def step(self, name: str, seconds: list[float]):
        left = iter(seconds)

        def run() -> str:
            self.log.append(name)
            return f"{name}:{next(left)}"

        return run

    def wait(self, result: object) -> None:
        # The device works while it is waited for: a clock read before the wait would see nothing.
        if result is not None:
            self.now += float(str(result).partition(":")[2])


def test_warm_up_runs_are_not_timed_and_the_device_is_awaited_before_the_clock_is_read():
    bench = Bench()
    timing = measure(
        bench.step("a", [100.0, 50.0, 3.0, 1.0, 2.0]), wait=bench.wait, warmup=2, repeats=3, clock=bench.clock
    )
    assert (timing.median_s, timing.low_s, timing.high_s, timing.runs) == (2.0, 1.0, 3.0, 3)


def test_two_steps_alternate_and_neither_is_always_second():
    bench = Bench()
    a, b = interleave(
        bench.step("a", [9, 1, 2, 3]),
        bench.step("b", [9, 10, 20, 30]),
        wait=bench.wait,
        warmup=1,
        repeats=3,
        clock=bench.clock,
    )
    assert (a, b) == ([1, 2, 3], [10, 20, 30])
    assert "".join(bench.log) == "ab" + "ab" + "ba" + "ab"


def test_interval_of_the_median_uses_the_published_ranks():
    # Conover's table for n = 30 gives the 10th and the 21st ordered value; n = 6 gives the extremes.
    assert timing_of(range(1, 31)) == timing_of(range(30, 0, -1))
    assert (timing_of(range(1, 31)).low_s, timing_of(range(1, 31)).high_s) == (10, 21)
    assert (timing_of(range(1, 7)).low_s, timing_of(range(1, 7)).high_s) == (1, 6)
    assert (timing_of([7.0]).low_s, timing_of([7.0]).high_s) == (7.0, 7.0)


def test_interval_of_the_median_covers_it_at_the_claimed_rate():
    rng = np.random.default_rng(1)
    hits = [t.low_s <= 1.0 <= t.high_s for t in (timing_of(np.exp(rng.normal(size=15))) for _ in range(600))]
    assert 0.93 <= np.mean(hits) <= 0.995


def test_ratio_of_equal_steps_covers_one_and_a_real_change_does_not():
    rng = np.random.default_rng(2)
    base = 1.0 + 0.05 * rng.random(30)
    ratio, low, high = ratio_interval(base, 1.0 + 0.05 * rng.random(30))
    assert low <= 1.0 <= high
    assert ratio == pytest.approx(1.0, abs=0.03)
    ratio, low, high = ratio_interval(2 * base, 1.0 + 0.05 * rng.random(30))
    assert low > 1.9
    assert high < 2.1


def test_ratio_interval_is_the_same_for_the_same_seed():
    a, b = [1.0, 1.2, 1.1, 1.4], [0.9, 1.0, 1.3]
    assert ratio_interval(a, b, seed=3) == ratio_interval(a, b, seed=3)
