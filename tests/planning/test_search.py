from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pinchpoint.core.errors import BadInput, TargetFailed, TimedOut
from pinchpoint.core.units import GIB, MIB
from pinchpoint.planning.search import Sample, SearchResult, largest_that_fits

STEP = 20 * MIB


def search(
    need: Callable[[int], float], budget: float, *, start: int = 4096, **options: object
) -> tuple[SearchResult, list[int]]:
    asked: list[int] = []

    def sample(number: int) -> Sample:
        asked.append(number)
        return Sample(number, int(need(number)), int(need(number)))

    return largest_that_fits(sample, budget_bytes=int(budget), start=start, **options), asked  # type: ignore[arg-type]


def stepped(fixed: float, slope: float) -> Callable[[int], float]:
    return lambda number: math.ceil((fixed + slope * number) / STEP) * STEP


@pytest.mark.parametrize("start", [1, 8, 4096, 10**6])
@pytest.mark.parametrize("budget", [4 * GIB, 24 * GIB, 140 * GIB])
@pytest.mark.parametrize("slope", [1024, 65_536, 4e6, 2e8])
def test_affine_needs_are_bracketed_within_one_percent_in_eight_runs(
    slope: float, budget: int, start: int
) -> None:
    found, asked = search(lambda number: GIB + slope * number, budget, start=start)
    exact = int((budget - GIB) // slope)
    assert found.fits is not None
    assert found.fails is not None
    assert found.fits.number <= exact < found.fails.number
    assert found.fails.number - found.fits.number <= max(1, 0.01 * found.fits.number)
    assert len(asked) <= (5 if start >= 4096 and slope < 1e8 else 8)


@pytest.mark.parametrize("slope", [1024, 65_536, 4e6])
@pytest.mark.parametrize("budget", [4 * GIB, 24 * GIB, 140 * GIB])
def test_the_allocators_steps_cost_no_more_than_eight_runs(slope: float, budget: int) -> None:
    need = stepped(2 * GIB, slope)
    found, asked = search(need, budget)
    assert found.fits is not None
    assert found.fails is not None
    assert len(asked) <= 8
    assert need(found.fits.number) <= budget < need(found.fails.number)
    # A step wider than 1 % of the answer cannot be told apart any finer than itself.
    assert found.gap is not None
    assert found.gap <= max(0.0101, 1.5 * STEP / slope / found.fits.number)


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_curved_needs_end_in_a_size_that_fits_with_its_gap_told(power: float) -> None:
    found, asked = search(lambda number: GIB + 500 * number**power, 40 * GIB)
    exact = int((39 * GIB / 500) ** (1 / power))
    assert len(asked) <= 8
    assert found.fits is not None
    assert found.gap is not None
    assert found.fits.number <= exact + 1
    assert found.fits.number * (1 + found.gap) >= exact
    assert found.gap < 0.0101


@pytest.mark.parametrize("budget", [6 * GIB, 24 * GIB, 140 * GIB])
@pytest.mark.parametrize("kink", [10**4, 10**5, 4 * 10**5])
def test_a_slope_that_doubles_is_bracketed_within_one_percent(kink: int, budget: int) -> None:
    found, asked = search(lambda number: GIB + 40_000 * (number + max(0, number - kink)), budget)
    assert found.gap is not None
    assert found.gap < 0.0101
    assert len(asked) <= 8


def test_a_tiny_slope_over_a_large_fixed_need_takes_no_more_than_five_runs() -> None:
    found, asked = search(lambda number: 23 * GIB + 100 * number, 24 * GIB)
    assert found.gap is not None
    assert found.gap < 0.0101
    assert len(asked) <= 5


@pytest.mark.parametrize("jump", [7_000_000, 7_400_000, 7_860_000, 7_950_000])
def test_a_need_that_jumps_past_the_budget_is_closed_in_from_both_sides(jump: int) -> None:
    # What a plain MLP's reserved bytes do: 3,102 B a point, and a third more once a block no longer fits a
    # freed one.
    def need(number: int) -> float:
        return 1.02 * (877 * 10**6 + number * (3102 if number < jump else 4123))

    found, _ = search(need, 24 * GIB)
    exact = min(jump, math.floor((24 * GIB / 1.02 - 877 * 10**6) / 3102) + 1)
    assert found.fits is not None
    assert found.fails is not None
    assert found.fits.number < exact <= found.fails.number
    assert found.gap is not None
    assert found.gap < 0.05


def test_a_fixed_need_beyond_the_budget_is_settled_in_two_samples() -> None:
    asked: list[int] = []

    def sample(number: int) -> Sample:
        asked.append(number)
        return Sample(number, 5 * GIB + 1000 * number, GIB, fixed_bytes=5 * GIB)

    found = largest_that_fits(sample, budget_bytes=4 * GIB, start=4096)
    assert found.fits is None
    assert asked == [4096, 1]


def test_what_is_claimed_was_itself_sampled() -> None:
    found, asked = search(stepped(GIB, 3e5), 10 * GIB)
    assert found.fits is not None
    assert found.fits.number in asked
    assert len(asked) == len(set(asked)), "a number is never paid for twice"


def test_a_budget_below_the_floor_is_settled_at_the_floor() -> None:
    found, asked = search(lambda number: 5 * GIB + number, 4 * GIB)
    assert found.fits is None
    assert found.fails is not None
    assert found.fails.number == 1
    assert asked[-1] == 1
    assert len(asked) <= 4


def test_wide_steps_above_a_first_guess_too_high_do_not_send_the_search_to_the_floor() -> None:
    # A small budget: the allocator's steps are a good part of what grows, and the line's first estimates
    # fail.
    need, asked = stepped(900 * MIB, 5500), []

    def sample(number: int) -> Sample:
        asked.append(number)
        needed = int(need(number)) + 60 * MIB * (number > 5000)
        return Sample(number, needed, needed, fixed_bytes=800 * MIB)

    found = largest_that_fits(sample, budget_bytes=GIB, start=65_536)
    assert found.gap is not None
    assert found.gap < 0.12
    assert min(asked) > 1000


def test_one_unit_above_the_floor_is_found() -> None:
    found, _ = search(lambda number: GIB + number * GIB, 2.5 * GIB)
    assert found.fits == Sample(1, 2 * GIB, 2 * GIB)
    assert found.fails is not None
    assert found.fails.number == 2


def test_a_flat_need_stops_after_two_samples_and_says_so() -> None:
    found, asked = search(lambda number: GIB, 24 * GIB)
    assert found.ending == "flat"
    assert len(asked) == 2
    assert found.fits is not None
    assert found.fits.number == max(asked)


def test_slow_growth_hidden_by_steps_is_not_taken_for_flat() -> None:
    asked: list[int] = []

    def sample(number: int) -> Sample:
        asked.append(number)
        live = GIB + 2000 * number
        return Sample(number, math.ceil(live / (4 * GIB)) * 4 * GIB, live)

    found = largest_that_fits(sample, budget_bytes=24 * GIB, start=4096)
    assert found.ending != "flat"
    assert found.fits is not None
    assert found.fits.number > 10**6


def test_the_search_stops_at_its_limit() -> None:
    found, asked = search(lambda number: GIB + number, 24 * GIB, up_to=50_000)
    assert found.ending == "up_to"
    assert max(asked) == 50_000
    assert found.fits is not None
    assert found.fits.number == 50_000


def test_a_need_that_falls_is_an_error_that_names_both_numbers() -> None:
    with pytest.raises(BadInput, match=r"falls from 20\.00 GiB at 4,096 to 2\.00 GiB"):
        search(lambda number: 20 * GIB if number < 5000 else 2 * GIB, 30 * GIB)


def test_a_need_that_may_fall_is_searched_for_the_largest_that_fits() -> None:
    def need(number: int) -> float:  # a hump between two valleys, then a steady climb past the budget
        return 12 * GIB if 2_000 < number < 3_000 else 2 * GIB + 2 * MIB * number / 4

    found, asked = search(need, 8 * GIB, start=16_384, may_fall=True)
    assert found.fits is not None and found.fails is not None
    assert found.fits.number in asked and need(found.fits.number) <= 8 * GIB < need(found.fails.number)
    assert found.fails.number > found.fits.number > 3_000


def test_a_time_out_above_a_fitting_number_ends_the_search_there() -> None:
    def need(number: int) -> float:
        if number > 100_000:
            raise TimedOut("too long", hint="wait")
        return GIB + 100 * number

    found, asked = search(need, 24 * GIB)
    assert found.ending == "timed_out"
    assert asked[-1] > 100_000
    assert found.fits is not None
    assert found.fits.number == max(number for number in asked if number <= 100_000)


def test_a_time_out_of_the_first_sample_is_raised() -> None:
    def need(number: int) -> float:
        raise TimedOut("too long", hint="wait")

    with pytest.raises(TimedOut):
        search(need, GIB)


def test_an_error_of_a_sample_is_raised_unchanged() -> None:
    def need(number: int) -> float:
        raise TargetFailed("no such size", hint="another")

    with pytest.raises(TargetFailed, match="no such size"):
        search(need, GIB)


def test_known_samples_cost_no_run() -> None:
    known = [Sample(100, GIB, GIB), Sample(1000, 10 * GIB, 10 * GIB)]
    found, asked = search(lambda number: number * GIB / 100, 5 * GIB, known=known, runs=1)
    assert len(asked) == 1
    assert 490 <= asked[0] <= 500
    assert found.fits is not None
    assert found.fits.number == asked[0]
