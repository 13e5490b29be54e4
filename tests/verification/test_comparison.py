from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.workload import Probe, Tolerance
from pinchpoint.verification.comparison import (
    Comparison,
    compare,
    compare_arrays,
    compare_counts,
    compare_gradient,
)

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(50, 4))


def one(before: object, after: object, tolerance: float = 1e-5) -> Comparison:
    return compare_arrays("y", "output", before, after, tolerance)


def test_the_error_is_the_relative_l2_norm_and_the_worst_element_is_named() -> None:
    after = VALUES.copy()
    after[7, 2] += 0.5
    after[3, 1] -= 0.2
    result = one(VALUES, after)
    assert result.error == pytest.approx(np.sqrt(0.5**2 + 0.2**2) / np.sqrt((VALUES**2).sum()))
    assert not result.ok
    assert result.where.startswith("[7, 2]: ")


def test_rounding_is_within_the_tolerance() -> None:
    result = one(VALUES, VALUES.astype(np.float32))
    assert result.ok
    assert result.error is not None
    assert 0 < result.error < 1e-7


def test_a_transposed_square_result_is_refused_and_named_as_such() -> None:
    square = RNG.normal(size=(6, 6))
    result = one(square, square.T)
    assert not result.ok
    assert "transposed" in result.reason


def test_another_shape_is_refused_even_if_it_would_broadcast() -> None:
    assert "the shape is (50, 1), but the baseline's is (50)" in one(np.ones(50), np.ones((50, 1))).reason
    result = one(VALUES, VALUES.T)
    assert not result.ok
    assert result.error is None
    assert "transposed" in result.reason


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_a_value_that_is_not_finite_is_refused_with_its_index(bad: float, word: str) -> None:
    after = VALUES.copy()
    after[4, 3] = bad
    result = one(VALUES, after, tolerance=1e9)
    assert not result.ok
    assert result.where == "[4, 3]"
    assert word in result.reason


def test_nan_in_both_is_refused_too() -> None:
    both = np.array([1.0, np.nan])
    assert not one(both, both).ok
    assert "in the baseline itself" in one(both, np.ones(2)).reason


def test_a_dropped_last_chunk_is_refused_with_its_rows() -> None:
    after = VALUES.copy()
    after[48:] = 0
    result = one(VALUES, after)
    assert not result.ok
    assert "rows 48 to 49 of 50 are wrong; all before agree" in result.reason
    assert not one(VALUES, VALUES[:48]).ok


def test_one_wrong_row_in_a_million_is_beyond_the_default_tolerance() -> None:
    before = np.ones(10**6)
    after = before.copy()
    after[-1] = 0
    assert not one(before, after, Tolerance().outputs).ok


def test_whole_numbers_must_be_equal() -> None:
    assert one(np.arange(5), np.arange(5)).ok
    result = one(np.arange(5), np.array([0, 1, 2, 4, 4]), tolerance=1.0)
    assert not result.ok
    assert result.error == pytest.approx(0.2)
    assert result.where.startswith("[3]")


def test_against_exact_zeros_the_error_is_absolute() -> None:
    assert one(np.zeros(4), np.full(4, 1e-9)).error == pytest.approx(1e-9)
    assert not one(np.zeros(4), np.ones(4)).ok


def test_scalars_and_empty_and_complex_arrays_can_be_compared() -> None:
    assert one(np.float32(2.0), np.float32(2.0)).where == "[]: 2, baseline 2"
    assert one(np.empty((0, 3)), np.empty((0, 3))).ok
    assert one(np.array([1 + 1j]), np.array([1 - 1j])).error == pytest.approx(2 / np.sqrt(2))


def test_arrays_that_are_not_numbers_are_refused() -> None:
    assert "not arrays of numbers" in one(np.array(["a"]), np.array(["a"])).reason


def test_a_missing_gradient_is_a_failure_whatever_the_tolerance() -> None:
    result = compare_gradient("w", np.ones(3), None, 1e9)
    assert not result.ok
    assert "there is no gradient, but the baseline has one" in result.reason


def test_a_zero_gradient_is_a_failure_whatever_the_tolerance() -> None:
    result = compare_gradient("w", np.full(3, 1e-20), np.zeros(3), 1e9)
    assert not result.ok
    assert "the gradient is zero, but the baseline's is not" in result.reason


def test_a_gradient_where_the_baseline_has_none_is_a_failure() -> None:
    assert not compare_gradient("w", None, np.ones(3), 1e-4).ok
    assert compare_gradient("w", None, np.zeros(3), 1e-4).ok
    assert compare_gradient("w", np.zeros(3), None, 1e-4).ok
    assert compare_gradient("w", None, None, 1e-4).ok


def both(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, Comparison]:
    return {c.name: c for c in compare(Probe({}, before), Probe({}, after), Tolerance())}


def test_a_gradient_of_a_parameter_that_is_only_rounding_is_compared_with_rounding() -> None:
    # A bias before a normalisation has a gradient of rounding noise only: no two ways of computing it agree.
    noise, other = (RNG.normal(size=20).astype(np.float32) * np.float32(1e-8) for _ in range(2))
    weight = RNG.normal(size=1000).astype(np.float32)
    result = both({"w": weight, "b": noise}, {"w": weight, "b": other})["b"]
    assert result.ok
    assert result.noise
    assert result.error == pytest.approx(np.linalg.norm(other - noise) / np.linalg.norm(noise), rel=1e-6)
    assert result.error > Tolerance().gradients
    assert result.tolerance > result.error
    assert "rounding" in result.reason


def test_a_small_wrong_gradient_is_refused_although_the_difference_is_small() -> None:
    weight = RNG.normal(size=1000).astype(np.float32)
    small = np.float32(1e-4) * weight[:20]
    result = both({"w": weight, "b": small}, {"w": weight, "b": np.float32(1.1) * small})["b"]
    assert not result.ok
    assert result.error == pytest.approx(0.1, rel=1e-3)
    # The error is below the rounding of the weight's gradient, but above that of the baseline's own.
    small = np.float32(2e-6) * weight[:20]
    result = both({"w": weight, "b": small}, {"w": weight, "b": np.float32(1.1) * small})["b"]
    assert not result.ok
    assert not result.noise


def test_noise_that_grows_beyond_rounding_is_refused_with_its_error() -> None:
    weight = RNG.normal(size=1000).astype(np.float32)
    noise = np.float32(1e-8) * weight[:20]
    result = both({"w": weight, "b": noise}, {"w": weight, "b": np.float32(1000) * noise})["b"]
    assert not result.ok
    assert result.error == pytest.approx(999, rel=1e-3)


@pytest.mark.parametrize(("points_", "kind"), [(1_000_000, np.float32), (2048, np.float16)])
def test_the_gradient_of_inputs_by_a_mean_of_many_points_is_not_mistaken_for_rounding(
    points_: int, kind: type
) -> None:
    each = RNG.normal(size=points_) + 0.5
    inputs, bias = (each / points_).astype(kind), np.array([each.mean()], kind)
    halved = inputs.copy()
    halved[points_ // 2 :] = 0
    for wrong in (-inputs, inputs * kind(1.2), halved):
        result = both({"x": inputs, "b": bias}, {"x": wrong, "b": bias})["x"]
        assert not result.ok
        assert result.error == pytest.approx(
            np.linalg.norm(wrong.astype(float) - inputs) / np.linalg.norm(inputs.astype(float)), rel=1e-6
        )


def test_a_gradient_is_refused_if_the_baseline_is_exactly_zero_unless_it_is_rounding() -> None:
    assert not compare_gradient("w", np.zeros(10), np.full(10, 5e-5), 1e-4).ok
    assert not compare_gradient("w", np.zeros(10), np.full(10, 1e-30), 1e9).ok
    assert compare_gradient("w", np.zeros(10), np.zeros(10), 0.0).ok
    weight = np.ones(100, np.float32)
    zero = np.zeros(10, np.float32)
    rounded = both({"w": weight, "b": zero}, {"w": weight, "b": zero + np.float32(1e-8)})["b"]
    assert rounded.ok
    assert rounded.noise
    assert rounded.error == pytest.approx(1e-8)
    result = both({"w": weight, "b": zero}, {"w": weight, "b": zero + np.float32(5e-5)})["b"]
    assert not result.ok
    assert result.reason == "the gradient is not zero, but the baseline's is"
    assert result.error == pytest.approx(5e-5)


def test_outputs_of_only_one_side_are_refused() -> None:
    result = compare(Probe({"a": 1.0, "b": 1.0}), Probe({"a": 1.0, "c": 1.0}), Tolerance(), at="seed 3")
    assert {c.name: c.ok for c in result} == {"a": True, "b": False, "c": False}
    assert result[1].reason == "only the baseline has this output"
    assert result[2].where == "seed 3"


def test_the_numbers_of_processed_points_must_be_equal() -> None:
    assert compare_counts(100, 100).ok
    result = compare_counts(100, 96)
    assert not result.ok
    assert result.error == pytest.approx(0.04)
    assert "96 points were processed, but the baseline processed 100" in result.reason
