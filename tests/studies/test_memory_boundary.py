"""Closing in on where memory ends: within 1 %, in few runs, never through a crash."""

from __future__ import annotations

import pytest

from pinchpoint.studies.memory_boundary import close_in


def probe(limit: int):
    asked: list[int] = []

    def run(size: int) -> bool:
        asked.append(size)
        return size <= limit

    return run, asked


@pytest.mark.parametrize("limit", [1_000_001, 1_234_567, 1_990_000])
def test_bisection_alone_ends_within_one_percent_of_the_truth(limit):
    run, asked = probe(limit)
    found = close_in(1_000_000, 2_000_000, guess=None, run=run)
    assert found.fits <= limit < found.fails <= 1.01 * found.fits
    assert found.runs == len(asked) <= 7


def test_a_good_guess_needs_two_runs():
    run, asked = probe(1_234_567)
    found = close_in(1_000_000, 2_000_000, guess=1_234_000.0, run=run)
    assert found.fits <= 1_234_567 < found.fails <= 1.01 * found.fits
    assert len(asked) == 2


@pytest.mark.parametrize("guess", [900_000.0, 1_050_000.0, 1_900_000.0, 5e9, float("inf")])
def test_a_poor_guess_still_ends_right(guess):
    run, asked = probe(1_500_000)
    found = close_in(1_000_000, 2_000_000, guess=guess, run=run)
    assert found.fits <= 1_500_000 < found.fails
    assert found.fails <= 1.011 * found.fits
    assert len(asked) <= 8


def test_neighbouring_sizes_end_the_search():
    run, asked = probe(5)
    found = close_in(4, 7, guess=None, run=run)
    assert (found.fits, found.fails) == (5, 6)
    assert len(asked) == 2


def test_a_crash_ends_the_search_where_it_stood():
    found = close_in(1_000, 2_000, guess=None, run=lambda size: None)
    assert (found.fits, found.fails, found.runs) == (1_000, 2_000, 1)
