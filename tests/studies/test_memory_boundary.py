"""The memory boundary is found within 1 %, in few runs, and a crash ends the search."""

from __future__ import annotations

import pytest

from pinchpoint.studies.memory_boundary import find_boundary


def probe(limit: int):
    sizes: list[int] = []

    def run(size: int) -> bool:
        sizes.append(size)
        return size <= limit

    return run, sizes


@pytest.mark.parametrize("limit", [1_000_001, 1_234_567, 1_990_000])
def test_bisection_alone_ends_within_one_percent_of_the_truth(limit):
    run, sizes = probe(limit)
    boundary = find_boundary(1_000_000, 2_000_000, guess=None, run=run)
    assert boundary.fits <= limit < boundary.fails <= 1.01 * boundary.fits
    assert boundary.runs == len(sizes) <= 7


def test_a_good_guess_needs_two_runs():
    run, sizes = probe(1_234_567)
    boundary = find_boundary(1_000_000, 2_000_000, guess=1_234_000.0, run=run)
    assert boundary.fits <= 1_234_567 < boundary.fails <= 1.01 * boundary.fits
    assert len(sizes) == 2


@pytest.mark.parametrize("guess", [900_000.0, 1_050_000.0, 1_900_000.0, 5e9, float("inf")])
def test_a_poor_guess_still_finds_the_boundary(guess):
    run, sizes = probe(1_500_000)
    boundary = find_boundary(1_000_000, 2_000_000, guess=guess, run=run)
    assert boundary.fits <= 1_500_000 < boundary.fails
    assert boundary.fails <= 1.011 * boundary.fits
    assert len(sizes) <= 8


def test_neighbouring_sizes_end_the_search():
    run, sizes = probe(5)
    boundary = find_boundary(4, 7, guess=None, run=run)
    assert (boundary.fits, boundary.fails) == (5, 6)
    assert len(sizes) == 2


def test_a_crash_ends_the_search_at_the_current_bracket():
    boundary = find_boundary(1_000, 2_000, guess=None, run=lambda size: None)
    assert (boundary.fits, boundary.fails, boundary.runs) == (1_000, 2_000, 1)
