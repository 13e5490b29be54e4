from __future__ import annotations

from collections.abc import Callable

import pytest

from pinchpoint.core.errors import TimedOut
from pinchpoint.core.units import GIB
from pinchpoint.planning.need_curve import RESERVE, read, refine
from pinchpoint.planning.search import Sample

LIMITS = {"floor": 1, "up_to": 10**9}


def samples(need: Callable[[int], float], *numbers: int) -> dict[int, Sample]:
    return {n: Sample(n, int(need(n)), int(need(n))) for n in numbers}


def line(number: int) -> float:
    return GIB + 1000 * number


def test_between_two_samples_the_line_is_interpolated_and_reduced_by_one_percent() -> None:
    reading = read(samples(line, 10**5, 10**6, 10**7).values(), int(line(5 * 10**6)), **LIMITS)
    assert reading.number == pytest.approx(5 * 10**6 * (1 - RESERVE), abs=1)
    assert not reading.sampled
    assert reading.doubt == pytest.approx(RESERVE / (1 - RESERVE), rel=1e-3)


def test_a_sample_just_below_the_limit_is_the_answer() -> None:
    reading = read(samples(line, 10**6, 10**7).values(), int(line(10**6 + 5000)), **LIMITS)
    assert (reading.number, reading.sampled) == (10**6, True)


def test_a_jump_between_samples_lowers_the_answer_to_that_of_the_upper_line() -> None:
    def jumps(number: int) -> float:
        return line(number) + (2 * GIB if number > 2 * 10**6 else 0)

    budget = int(jumps(5 * 10**6))
    reading = read(samples(jumps, 10**5, 10**6, 8 * 10**6, 10**7).values(), budget, **LIMITS)
    assert reading.number is not None
    assert jumps(reading.number) <= budget
    assert reading.doubt > 0.2


def test_no_answer_exceeds_the_largest_sample() -> None:
    reading = read(samples(line, 10**5, 10**6).values(), int(line(10**7)), **LIMITS)
    assert (reading.number, reading.sampled) == (10**6, True)
    assert reading.aim == pytest.approx(10**7, rel=0.01)


def test_a_budget_below_every_sample_has_no_answer_until_the_floor_is_sampled() -> None:
    known = samples(line, 10**6, 10**7)
    reading = read(known.values(), GIB // 2, **LIMITS)
    assert (reading.number, reading.sampled, reading.aim) == (None, False, 1)
    reading = read((known | samples(line, 1)).values(), GIB // 2, **LIMITS)
    assert (reading.number, reading.sampled, reading.aim) == (None, True, None)


def test_samples_are_taken_where_the_doubt_is_largest_until_it_is_small() -> None:
    requests: list[int] = []

    def sample(number: int) -> Sample:
        requests.append(number)
        return Sample(number, int(line(number)), 0)

    known = samples(line, 10**5, 10**6)
    budgets = [int(line(n)) for n in (2 * 10**6, 10**7, 3 * 10**7)]
    assert refine(known, sample, budgets, runs=8, **LIMITS) is None
    assert len(requests) == 1, "the largest; the line below it needs no more"
    for budget, exact in zip(budgets, (2 * 10**6, 10**7, 3 * 10**7), strict=True):
        number = read(known.values(), budget, **LIMITS).number
        assert number is not None
        assert 0.98 * exact <= number <= exact


def test_a_prediction_that_fails_is_returned_and_the_other_budgets_are_still_refined() -> None:
    requests: list[int] = []

    def sample(number: int) -> Sample:
        requests.append(number)
        if number > 10**6:
            raise TimedOut("too long", hint="wait")
        return Sample(number, int(line(number)), 0)

    known = samples(line, 10**5, 10**6)
    budgets = [int(line(n)) for n in (10**4, 2 * 10**4, 10**7)]
    error = refine(known, sample, budgets, runs=8, **LIMITS)
    assert error is not None and error.what == "too long"
    assert sum(number > 10**6 for number in requests) == 1, "what is larger would take longer"
    assert min(known) < 2 * 10**4


def test_a_failed_prediction_without_other_budgets_is_returned() -> None:
    def sample(number: int) -> Sample:
        raise TimedOut("too long", hint="wait")

    known = samples(line, 10**5, 10**6)
    stopped = refine(known, sample, [int(line(10**7))], runs=8, **LIMITS)
    assert stopped is not None
    assert stopped.what == "too long"
    assert len(known) == 2
