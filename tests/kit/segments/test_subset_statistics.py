"""Draws have the claimed distribution: chi-square tests with a fixed threshold, and samplers that must fail.

Every draw is a function of its seed, so these numbers are the same in each run: none can fail by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from torch import Tensor

from pinchpoint.kit import Segments, draw_counts, sample_one, sample_subset
from pinchpoint.kit.segments import hashing

# The chance that a perfect sampler fails any one of all comparisons made here, shared out among them.
LEAST = 1e-4
COMPARISONS = 40

Sampler = Callable[[Segments, int, int], Tensor]


def probability(observed: Tensor, expected: Tensor) -> float:
    """The probability of a chi-square at least as large, for observed and expected counts of equal sum."""
    square = float(((observed.double() - expected.double()) ** 2 / expected.double()).sum())
    return float(
        torch.special.gammaincc(
            torch.tensor((len(observed) - 1) / 2).double(), torch.tensor(square / 2).double()
        )
    )


def require_even(observed: Tensor) -> None:
    assert (
        probability(observed, torch.full((len(observed),), float(observed.sum()) / len(observed)))
        >= LEAST / COMPARISONS
    )


def rows_of(cells: int, length: int, *, strided: bool) -> Segments:
    """Cells whose points lie together, or as far apart as they can."""
    points = torch.arange(cells * length)
    return Segments.from_ids(points % cells if strided else points // length)


def exact(segments: Segments, count: int, seed: int) -> Tensor:
    return sample_subset(segments, count, seed=seed)


def subsets(segments: Segments, drawn: Tensor, length: int) -> Tensor:
    """(C,) which of a cell's points were drawn, as the bits of a number."""
    taken = torch.zeros(segments.points, dtype=torch.int64).index_fill_(0, drawn.long(), 1)
    return (taken[segments.order.long()].view(-1, length) << torch.arange(length)).sum(1)


def numbered(codes: Tensor, kinds: int) -> tuple[Tensor, int]:
    """Codes from 0 on. Every kind there is must have been seen."""
    names, numbers = codes.unique(return_inverse=True)
    assert len(names) == kinds
    return numbers, kinds


def require_all_subsets_alike(
    sampler: Sampler, length: int, count: int, *, cells: int, strided: bool, seed: int = 11
) -> None:
    segments = rows_of(cells, length, strided=strided)
    codes = subsets(segments, sampler(segments, count, seed), length)
    require_even(torch.bincount(numbered(codes, math.comb(length, count))[0]))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(
    ("length", "count", "cells"), [(8, 4, 70_000), (12, 6, 90_000), (5, 1, 20_000), (6, 5, 20_000)]
)
def test_every_subset_of_a_cell_is_as_likely_as_any_other(
    length: int, count: int, cells: int, strided: bool
) -> None:
    require_all_subsets_alike(exact, length, count, cells=cells, strided=strided)


def test_every_subset_of_one_cell_is_as_likely_over_steps() -> None:
    segments = rows_of(40, 8, strided=True)
    codes = torch.cat(
        [subsets(segments, sample_subset(segments, 4, seed=3, step=step), 8) for step in range(500)]
    )
    require_even(torch.bincount(numbered(codes, math.comb(8, 4))[0]))


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_points_enter_nested_draws_in_every_order_alike(length: int) -> None:
    segments = rows_of(30_000, length, strided=False)
    taken = [torch.zeros(segments.points, dtype=torch.int64) for _ in range(length)]
    for count in range(length):
        drawn = sample_subset(segments, count + 1, method="nested", seed=5)
        taken[count][drawn.long()] = 1
    ranks = length - torch.stack(taken).sum(0).view(-1, length)  # in how many draws a point was not
    codes = (ranks * length ** torch.arange(length)).sum(1)
    assert set(codes.unique().tolist()) == {
        sum(rank * length**at for at, rank in enumerate(order)) for order in permutations(range(length))
    }
    require_even(torch.bincount(numbered(codes, math.factorial(length))[0]))


@pytest.mark.parametrize(
    "other",
    [{"seed": 8}, {"step": 1}, {"rank": 1}, {"view": 1}, {"seed": 7 + 2**32}, {"step": 2**16}],
    ids=str,
)
def test_draws_of_other_words_are_independent(other: dict[str, int]) -> None:
    segments = rows_of(40_000, 4, strided=False)
    first = numbered(subsets(segments, sample_subset(segments, 2, seed=7), 4), 6)[0]
    second = numbered(subsets(segments, sample_subset(segments, 2, **({"seed": 7} | other)), 4), 6)[0]
    require_even(torch.bincount(first * 6 + second, minlength=36))


@pytest.mark.parametrize("apart", [1, 2, 1000])
@pytest.mark.parametrize("strided", [False, True])
def test_draws_of_two_cells_are_independent(apart: int, strided: bool) -> None:
    segments = rows_of(40_000, 4, strided=strided)
    codes = numbered(subsets(segments, sample_subset(segments, 2, seed=9), 4), 6)[0]
    require_even(torch.bincount(codes * 6 + codes.roll(apart), minlength=36))


def test_a_cell_of_a_million_points_is_thinned_evenly_along_its_length() -> None:
    points, count, parts = 1_000_000, 300_000, 200
    segments = Segments.from_offsets(torch.tensor([0, points]))
    drawn = sample_subset(segments, count, seed=1)
    seen = torch.bincount(drawn.long() * parts // points, minlength=parts).double()
    # Drawing without replacement: each part's number varies by 1 - count / points of what it would with, in
    # square.
    shrunk = (seen - count / parts) / math.sqrt(1 - count / points) + count / parts
    require_even(shrunk)


def test_one_point_of_a_cell_is_any_of_its_points() -> None:
    segments = rows_of(60_000, 7, strided=True)
    require_even(torch.bincount(sample_one(segments, seed=4) // 60_000))


@pytest.mark.parametrize(("length", "ratio"), [(1, 0.5), (2, 0.5), (3, 0.36), (5, 0.5), (20, 0.475)])
def test_counts_are_right_on_average(length: int, ratio: float) -> None:
    segments = rows_of(100_000, length, strided=False)
    counts = draw_counts(segments, ratio, seed=2, least=0)
    low = math.floor(length * ratio)
    observed = torch.bincount(counts)[low:]
    share = length * ratio - low
    assert len(observed) == (2 if share else 1)
    if share:
        expected = torch.tensor([1 - share, share]) * 100_000
        assert probability(observed, expected) >= LEAST / COMPARISONS


def test_a_range_of_ratios_is_even_over_cells() -> None:
    segments = rows_of(2000, 1000, strided=False)
    counts = draw_counts(segments, (0.3, 0.7), seed=2)
    inner = counts[(counts > 300) & (counts < 700)]
    require_even(torch.bincount((inner - 301) * 19 // 399, minlength=19))


def test_the_bits_of_keys_are_even_high_and_low() -> None:
    keys = hashing.keys(torch.arange(500_000), hashing.words(seed=0))
    require_even(torch.bincount(keys >> 22))
    require_even(torch.bincount(keys & 1023))
    assert len(keys.unique()) == 500_000


def prefix(segments: Segments, count: int, seed: int) -> Tensor:
    """The first points of every cell, whatever the seed."""
    places = segments.offsets[:-1, None] + torch.arange(count)
    return segments.order[places.reshape(-1).long()]


def one_shuffle_for_all(segments: Segments, count: int, seed: int) -> Tensor:
    """One random choice of places, the same in every cell."""
    length = segments.points // segments.cells
    chosen = torch.randperm(length, generator=torch.Generator().manual_seed(seed))[:count]
    return segments.order[(segments.offsets[:-1, None] + chosen).reshape(-1).long()]


def by_plain_product(segments: Segments, count: int, seed: int) -> Tensor:
    """The smallest of keys that are a line modulo 2**32, never mixed."""
    keys = (torch.arange(segments.points) * hashing.SPREAD + seed) & (2**32 - 1)
    cells = segments.of_point().long()
    order = torch.argsort((cells << 32) | keys)
    return order.view(segments.cells, -1)[:, :count].reshape(-1)


@pytest.mark.parametrize("sampler", [prefix, one_shuffle_for_all, by_plain_product])
def test_the_comparison_refuses_samplers_that_are_not_random(sampler: Sampler) -> None:
    with pytest.raises(AssertionError):
        require_all_subsets_alike(sampler, 8, 4, cells=70_000, strided=False)


def test_the_comparison_refuses_a_slight_preference() -> None:
    """One subset of six that is a tenth likelier."""
    observed = torch.full((6,), 7000)
    observed[0] += 700
    with pytest.raises(AssertionError):
        require_even(observed)
