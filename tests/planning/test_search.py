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
    requests: list[int] = []

    def sample(number: int) -> Sample:
        requests.append(number)
        return Sample(number, int(need(number)), int(need(number)))

    return largest_that_fits(sample, budget_bytes=int(budget), start=start, **options), requests  # type: ignore[arg-type]


def stepped(fixed: float, slope: float) -> Callable[[int], float]:
    return lambda number: math.ceil((fixed + slope * number) / STEP) * STEP


@pytest.mark.parametrize("start", [1, 8, 4096, 10**6])
@pytest.mark.parametrize("budget", [4 * GIB, 24 * GIB, 140 * GIB])
@pytest.mark.parametrize("slope", [1024, 65_536, 4e6, 2e8])
def test_affine_needs_are_bracketed_within_one_percent_in_eight_runs(
    slope: float, budget: int, start: int
) -> None:
    matches, requests = search(lambda number: GIB + slope * number, budget, start=start)
    exact = int((budget - GIB) // slope)
    assert matches.fits is not None
    assert matches.fails is not None
    assert matches.fits.number <= exact < matches.fails.number
    assert matches.fails.number - matches.fits.number <= max(1, 0.01 * matches.fits.number)
    assert len(requests) <= (5 if start >= 4096 and slope < 1e8 else 8)


@pytest.mark.parametrize("slope", [1024, 65_536, 4e6])
@pytest.mark.parametrize("budget", [4 * GIB, 24 * GIB, 140 * GIB])
def test_steps_of_the_allocator_cost_no_more_than_eight_runs(slope: float, budget: int) -> None:
    need = stepped(2 * GIB, slope)
    matches, requests = search(need, budget)
    assert matches.fits is not None
    assert matches.fails is not None
    assert len(requests) <= 8
    assert need(matches.fits.number) <= budget < need(matches.fails.number)
    # Within a step that is wider than 1 % of the answer, sizes cannot be distinguished.
    assert matches.gap is not None
    assert matches.gap <= max(0.0101, 1.5 * STEP / slope / matches.fits.number)


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_curved_needs_end_in_a_size_that_fits_with_a_known_gap(power: float) -> None:
    matches, requests = search(lambda number: GIB + 500 * number**power, 40 * GIB)
    exact = int((39 * GIB / 500) ** (1 / power))
    assert len(requests) <= 8
    assert matches.fits is not None
    assert matches.gap is not None
    assert matches.fits.number <= exact + 1
    assert matches.fits.number * (1 + matches.gap) >= exact
    assert matches.gap < 0.0101


@pytest.mark.parametrize("budget", [6 * GIB, 24 * GIB, 140 * GIB])
@pytest.mark.parametrize("kink", [10**4, 10**5, 4 * 10**5])
def test_a_slope_that_doubles_is_bracketed_within_one_percent(kink: int, budget: int) -> None:
    matches, requests = search(lambda number: GIB + 40_000 * (number + max(0, number - kink)), budget)
    assert matches.gap is not None
    assert matches.gap < 0.0101
    assert len(requests) <= 8


def test_a_tiny_slope_over_a_large_fixed_need_takes_no_more_than_five_runs() -> None:
    matches, requests = search(lambda number: 23 * GIB + 100 * number, 24 * GIB)
    assert matches.gap is not None
    assert matches.gap < 0.0101
    assert len(requests) <= 5


@pytest.mark.parametrize("jump", [7_000_000, 7_400_000, 7_860_000, 7_950_000])
def test_a_need_that_jumps_past_the_budget_is_bracketed_from_both_sides(jump: int) -> None:
    # As the reserved bytes of a plain MLP: 3,102 B per point, and a third more once a block no longer fits
    # into a freed one.
    def need(number: int) -> float:
        return 1.02 * (877 * 10**6 + number * (3102 if number < jump else 4123))

    matches, _ = search(need, 24 * GIB)
    exact = min(jump, math.floor((24 * GIB / 1.02 - 877 * 10**6) / 3102) + 1)
    assert matches.fits is not None
    assert matches.fails is not None
    assert matches.fits.number < exact <= matches.fails.number
    assert matches.gap is not None
    assert matches.gap < 0.05


def test_a_fixed_need_beyond_the_budget_is_settled_in_two_samples() -> None:
    requests: list[int] = []

    def sample(number: int) -> Sample:
        requests.append(number)
        return Sample(number, 5 * GIB + 1000 * number, GIB, fixed_bytes=5 * GIB)

    matches = largest_that_fits(sample, budget_bytes=4 * GIB, start=4096)
    assert matches.fits is None
    assert requests == [4096, 1]


def test_the_answer_was_itself_sampled() -> None:
    matches, requests = search(stepped(GIB, 3e5), 10 * GIB)
    assert matches.fits is not None
    assert matches.fits.number in requests
    assert len(requests) == len(set(requests)), "a number is never paid for twice"


def test_a_budget_below_the_floor_is_settled_at_the_floor() -> None:
    matches, requests = search(lambda number: 5 * GIB + number, 4 * GIB)
    assert matches.fits is None
    assert matches.fails is not None
    assert matches.fails.number == 1
    assert requests[-1] == 1
    assert len(requests) <= 4


def test_wide_steps_above_a_first_guess_too_high_do_not_send_the_search_to_the_floor() -> None:
    # With a small budget, the allocator's steps are a large part of the growth, and the first estimates of
    # the line fail.
    need, requests = stepped(900 * MIB, 5500), []

    def sample(number: int) -> Sample:
        requests.append(number)
        needed = int(need(number)) + 60 * MIB * (number > 5000)
        return Sample(number, needed, needed, fixed_bytes=800 * MIB)

    matches = largest_that_fits(sample, budget_bytes=GIB, start=65_536)
    assert matches.gap is not None
    assert matches.gap < 0.12
    assert min(requests) > 1000


def test_one_unit_above_the_floor_is_found() -> None:
    matches, _ = search(lambda number: GIB + number * GIB, 2.5 * GIB)
    assert matches.fits == Sample(1, 2 * GIB, 2 * GIB)
    assert matches.fails is not None
    assert matches.fails.number == 2


def test_a_flat_need_ends_the_search_after_two_samples() -> None:
    matches, requests = search(lambda number: GIB, 24 * GIB)
    assert matches.ending == "flat"
    assert len(requests) == 2
    assert matches.fits is not None
    assert matches.fits.number == max(requests)


def test_a_need_that_something_else_hides_at_first_is_not_mistaken_for_flat() -> None:
    """A prompt peaks first; the text that is written exceeds it from about 1,000 tokens on."""
    matches, _ = search(
        lambda number: max(4 * GIB, 3 * GIB + 2**20 * number), 24 * GIB, start=8, flat_reach=512
    )
    assert matches.ending == "bracketed"
    assert matches.fits is not None and 21_000 <= matches.fits.number <= 21_504


def test_slow_growth_hidden_by_steps_is_not_mistaken_for_flat() -> None:
    requests: list[int] = []

    def sample(number: int) -> Sample:
        requests.append(number)
        live = GIB + 2000 * number
        return Sample(number, math.ceil(live / (4 * GIB)) * 4 * GIB, live)

    matches = largest_that_fits(sample, budget_bytes=24 * GIB, start=4096)
    assert matches.ending != "flat"
    assert matches.fits is not None
    assert matches.fits.number > 10**6


def test_the_search_stops_at_its_limit_of_runs() -> None:
    matches, requests = search(lambda number: GIB + number, 24 * GIB, up_to=50_000)
    assert matches.ending == "up_to"
    assert max(requests) == 50_000
    assert matches.fits is not None
    assert matches.fits.number == 50_000


def test_a_need_that_falls_is_an_error_that_names_both_numbers() -> None:
    with pytest.raises(BadInput, match=r"falls from 20\.00 GiB at 4,096 to 2\.00 GiB"):
        search(lambda number: 20 * GIB if number < 5000 else 2 * GIB, 30 * GIB)


def test_a_need_that_may_fall_is_searched_for_the_largest_that_fits() -> None:
    def need(number: int) -> float:  # a hump between two valleys, then a steady climb past the budget
        return 12 * GIB if 2_000 < number < 3_000 else 2 * GIB + 2 * MIB * number / 4

    matches, requests = search(need, 8 * GIB, start=16_384, may_fall=True)
    assert matches.fits is not None and matches.fails is not None
    assert matches.fits.number in requests and need(matches.fits.number) <= 8 * GIB < need(
        matches.fails.number
    )
    assert matches.fails.number > matches.fits.number > 3_000


def test_a_time_out_above_a_fitting_number_ends_the_search_there() -> None:
    def need(number: int) -> float:
        if number > 100_000:
            raise TimedOut("too long", hint="wait")
        return GIB + 100 * number

    matches, requests = search(need, 24 * GIB)
    assert matches.ending == "timed_out"
    assert requests[-1] > 100_000
    assert matches.fits is not None
    assert matches.fits.number == max(number for number in requests if number <= 100_000)


def test_after_a_time_out_of_the_first_sample_smaller_numbers_are_tried() -> None:
    def need(number: int) -> float:
        if number > 2_000:
            raise TimedOut("too long", hint="wait")
        return GIB + 100 * number

    matches, requests = search(need, 24 * GIB)
    assert requests[0] > 2_000 >= requests[1]
    assert matches.fits is not None and matches.fits.number >= requests[1]


def test_a_time_out_of_every_sample_is_raised() -> None:
    requests: list[int] = []

    def need(number: int) -> float:
        requests.append(number)
        raise TimedOut("too long", hint="wait")

    with pytest.raises(TimedOut):
        search(need, GIB)
    assert len(requests) <= 3 and requests[-1] == 1


def test_a_number_whose_need_is_unknown_does_not_fit() -> None:
    def sample(number: int) -> Sample:
        return Sample(number, GIB, GIB, known=number <= 300)

    matches = largest_that_fits(sample, budget_bytes=24 * GIB, start=4096)
    assert matches.fits is not None and 250 <= matches.fits.number <= 300
    assert matches.fails is not None and not matches.fails.known
    nothing = largest_that_fits(
        lambda number: Sample(number, GIB, GIB, known=False), budget_bytes=24 * GIB, start=4096
    )
    assert nothing.fits is None and nothing.runs == 2, "the start and the floor"


def test_an_error_of_a_sample_is_raised_unchanged() -> None:
    def need(number: int) -> float:
        raise TargetFailed("no such size", hint="another")

    with pytest.raises(TargetFailed, match="no such size"):
        search(need, GIB)


def test_known_samples_are_not_sampled_again() -> None:
    known = [Sample(100, GIB, GIB), Sample(1000, 10 * GIB, 10 * GIB)]
    matches, requests = search(lambda number: number * GIB / 100, 5 * GIB, known_samples=known, runs=1)
    assert len(requests) == 1
    assert 490 <= requests[0] <= 500
    assert matches.fits is not None
    assert matches.fits.number == requests[0]
