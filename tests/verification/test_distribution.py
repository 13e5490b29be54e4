from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from pinchpoint.core.workload import Probe
from pinchpoint.verification.comparison import Comparison
from pinchpoint.verification.distribution import ALPHA, can_refuse, compare_draws
from pinchpoint.verification.permutation_tests import holm, max_norm, p_value, smallest_p, square_norm

SEEDS = 16
POINTS = 600
Draw = Callable[[np.random.Generator], np.ndarray]


def right(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(POINTS, 3))


def compare_sides(before: Draw, after: Draw, *, seeds: int = SEEDS) -> list[Comparison]:
    """Compare two sides that draw with separate generators, as two correct implementations would."""
    sides = [
        [Probe({"x": draw(np.random.default_rng([side, s]))}) for s in range(seeds)]
        for side, draw in enumerate((before, after))
    ]
    return compare_draws(*sides, at=[f"seed {s}" for s in range(seeds)])


def refused_tests(after: Draw, before: Draw = right) -> set[str]:
    return {c.name.removeprefix("x: ") for c in compare_sides(before, after) if not c.ok}


def test_another_generator_of_the_same_distribution_is_accepted() -> None:
    comparisons = compare_sides(right, right)
    assert all(c.ok for c in comparisons)
    assert {c.name for c in comparisons} == {
        f"x: {n}" for n in ("values", "joint", "moments", "spread", "seeds", "order", "position")
    }


def test_identical_draws_are_accepted_with_no_error_at_all() -> None:
    probes = [Probe({"x": right(np.random.default_rng(s))}) for s in range(SEEDS)]
    assert all(c.ok and c.error == 0 for c in compare_draws(probes, probes, at=[""] * SEEDS))


def test_correlated_points_are_accepted_if_the_baseline_has_them_too() -> None:
    def walk(rng: np.random.Generator) -> np.ndarray:
        return np.cumsum(rng.normal(size=(POINTS, 3)), axis=0)

    assert refused_tests(walk, before=walk) == set()


def test_reused_noise_of_a_chunk_is_refused() -> None:
    assert "order" in refused_tests(lambda rng: np.tile(rng.normal(size=(POINTS // 4, 3)), (4, 1)))


def test_correlated_neighbours_are_refused() -> None:
    def chain(rng: np.random.Generator) -> np.ndarray:
        noise = rng.normal(size=(POINTS, 3))
        for i in range(1, POINTS):
            noise[i] = 0.3 * noise[i - 1] + np.sqrt(1 - 0.09) * noise[i]
        return noise

    assert "order" in refused_tests(chain)


def test_noise_shared_by_all_points_of_a_draw_is_refused() -> None:
    assert "spread" in refused_tests(
        lambda rng: np.sqrt(0.8) * rng.normal(size=(POINTS, 3)) + np.sqrt(0.2) * rng.normal(size=3)
    )


def test_antithetic_points_are_refused_although_their_values_are_correct() -> None:
    def mirrored(rng: np.random.Generator) -> np.ndarray:
        half = rng.normal(size=(POINTS // 2, 3))
        return np.concatenate([half, -half])

    assert {"order", "spread"} <= refused_tests(mirrored)


def test_draws_that_ignore_their_seed_are_refused() -> None:
    assert "seeds" in refused_tests(lambda rng: np.random.default_rng(7).normal(size=(POINTS, 3)))


def test_draws_that_share_half_their_noise_between_seeds_are_refused() -> None:
    fixed = np.random.default_rng(7).normal(size=(POINTS, 3))
    assert "seeds" in refused_tests(
        lambda rng: np.sqrt(0.5) * fixed + np.sqrt(0.5) * rng.normal(size=(POINTS, 3))
    )


def test_a_last_chunk_left_at_zero_is_refused() -> None:
    def dropped(rng: np.random.Generator) -> np.ndarray:
        points = rng.normal(size=(POINTS, 3))
        points[-7:] = 0
        return points

    assert "position" in refused_tests(dropped)


def test_a_small_shift_a_wider_spread_and_another_shape_are_refused() -> None:
    assert refused_tests(lambda rng: right(rng) + np.array([0.15, 0, 0]))
    assert refused_tests(lambda rng: right(rng) * 1.15)
    assert {"values", "joint"} & refused_tests(
        lambda rng: rng.uniform(-np.sqrt(3), np.sqrt(3), size=(POINTS, 3))
    )


def test_correlated_columns_with_correct_margins_are_refused() -> None:
    def tied(rng: np.random.Generator) -> np.ndarray:
        points = right(rng)
        points[:, 1] = 0.5 * points[:, 0] + np.sqrt(0.75) * points[:, 1]
        return points

    names = refused_tests(tied)
    assert "joint" in names
    assert "moments" not in names


def test_whole_numbers_are_compared_by_their_shares() -> None:
    def dice(*weights: float) -> Draw:
        return lambda rng: rng.choice(3, size=(POINTS, 2), p=weights)

    assert refused_tests(dice(0.5, 0.3, 0.2), before=dice(0.5, 0.3, 0.2)) == set()
    assert "values" in refused_tests(dice(0.45, 0.35, 0.2), before=dice(0.5, 0.3, 0.2))


def test_many_columns_and_single_numbers_can_be_compared() -> None:
    assert (
        refused_tests(lambda rng: rng.normal(size=(64, 5, 7)), before=lambda rng: rng.normal(size=(64, 5, 7)))
        == set()
    )
    assert (
        refused_tests(lambda rng: np.array(rng.normal()), before=lambda rng: np.array(rng.normal())) == set()
    )
    assert refused_tests(lambda rng: np.array(3 + rng.normal()), before=lambda rng: np.array(rng.normal()))


def test_nan_and_another_shape_and_a_missing_output_are_refused_without_a_test() -> None:
    def spoiled(rng: np.random.Generator) -> np.ndarray:
        points = right(rng)
        points[5, 1] = np.nan
        return points

    (result,) = compare_sides(right, spoiled)
    assert not result.ok
    assert result.where == "[5, 1] (seed 0)"
    (result,) = compare_sides(right, lambda rng: right(rng)[:-1])
    assert "the shape is (599, 3), but the baseline's is (600, 3)" in result.reason
    before = [Probe({"x": right(np.random.default_rng(s))}) for s in range(SEEDS)]
    after = [Probe({"y": probe.outputs["x"]}) for probe in before]
    assert [c.ok for c in compare_draws(before, after, at=[""] * SEEDS)] == [False, False]


def gradients(draw: Callable[[np.random.Generator], dict[str, np.ndarray | None]], side: int) -> list[Probe]:
    return [Probe({}, draw(np.random.default_rng([side, s]))) for s in range(SEEDS)]


def test_gradients_of_a_random_computation_are_compared_in_distribution() -> None:
    def noisy(shift: float) -> Callable[[np.random.Generator], dict[str, np.ndarray | None]]:
        return lambda rng: {"w": rng.normal(size=(8, 8)), "b": rng.normal(size=8) + shift}

    at = [f"seed {s}" for s in range(SEEDS)]
    assert all(c.ok for c in compare_draws(gradients(noisy(0), 0), gradients(noisy(0), 1), at=at))
    failures = [c for c in compare_draws(gradients(noisy(0), 0), gradients(noisy(3), 1), at=at) if not c.ok]
    assert [c.name for c in failures] == ["gradients: mean"]
    assert failures[0].where == "b"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "there is no gradient, but the baseline has one"),
        (np.zeros(4), "the gradient is zero, but the baseline's is not"),
    ],
)
def test_a_gradient_missing_or_zero_in_every_draw_is_refused(value: np.ndarray | None, reason: str) -> None:
    before = gradients(lambda rng: {"w": rng.normal(size=4)}, 0)
    after = gradients(lambda rng: {"w": value}, 1)
    (result,) = compare_draws(before, after, at=["here"] * SEEDS)
    assert not result.ok
    assert result.reason == reason


def test_p_values_match_a_count_of_all_swaps_by_hand() -> None:
    differences = np.random.default_rng(3).normal(size=(6, 4)) + 0.7
    for norm in (max_norm, square_norm):
        observed = norm(differences.sum(axis=0, keepdims=True))[0]
        all_swaps = [
            norm((np.array(signs) @ differences)[None])[0] for signs in itertools.product((1, -1), repeat=6)
        ]
        assert p_value(differences, norm) == pytest.approx(
            np.mean([value >= observed - 1e-12 for value in all_swaps])
        )
    assert p_value(np.ones((6, 1)), max_norm) == smallest_p(6) == 1 / 32


def test_holm_matches_the_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.slow
def test_correct_variants_are_refused_no_more_often_than_stated() -> None:
    # The points of a draw are strongly correlated: a test that assumes independence would nearly always
    # reject.
    rng = np.random.default_rng(11)
    rate, verdicts = 0.2, 150
    alarms = 0
    for _ in range(verdicts):
        before, after = (
            [
                Probe({"x": np.cumsum(rng.normal(size=(40, 2)), axis=0), "y": rng.normal(size=9)})
                for _ in range(9)
            ]
            for _ in range(2)
        )
        alarms += any(not c.ok for c in compare_draws(before, after, at=[""] * 9, alpha=rate))
    # Three standard deviations above the stated rate.
    assert alarms / verdicts < rate + 3 * np.sqrt(rate * (1 - rate) / verdicts)


def test_too_few_seeds_are_known_to_be_unable_to_refuse() -> None:
    assert can_refuse(SEEDS, 30)
    assert not can_refuse(8, 7)
    assert ALPHA == 0.01
