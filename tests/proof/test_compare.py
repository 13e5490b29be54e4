from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.workload import Probe, Tolerance
from pinchpoint.proof.compare import Comparison, arrays, compare, gradient, points

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(50, 4))


def one(before: object, after: object, tolerance: float = 1e-5) -> Comparison:
    return arrays("y", "output", before, after, tolerance)


def test_the_error_is_the_relative_l2_norm_and_the_worst_element_is_named() -> None:
    after = VALUES.copy()
    after[7, 2] += 0.5
    after[3, 1] -= 0.2
    found = one(VALUES, after)
    assert found.error == pytest.approx(np.sqrt(0.5**2 + 0.2**2) / np.sqrt((VALUES**2).sum()))
    assert not found.ok
    assert found.where.startswith("[7, 2]: ")


def test_rounding_is_within_the_tolerance() -> None:
    found = one(VALUES, VALUES.astype(np.float32))
    assert found.ok
    assert found.error is not None
    assert 0 < found.error < 1e-7


def test_a_square_result_transposed_is_refused_and_recognised() -> None:
    square = RNG.normal(size=(6, 6))
    found = one(square, square.T)
    assert not found.ok
    assert "transposed" in found.reason


def test_another_shape_is_refused_even_where_numbers_would_broadcast() -> None:
    assert "shape (50, 1), the baseline's is (50)" in one(np.ones(50), np.ones((50, 1))).reason
    found = one(VALUES, VALUES.T)
    assert not found.ok
    assert found.error is None
    assert "transposed" in found.reason


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_what_is_not_finite_is_refused_with_its_index(bad: float, word: str) -> None:
    after = VALUES.copy()
    after[4, 3] = bad
    found = one(VALUES, after, tolerance=1e9)
    assert not found.ok
    assert found.where == "[4, 3]"
    assert word in found.reason


def test_nan_in_both_is_refused_too() -> None:
    both = np.array([1.0, np.nan])
    assert not one(both, both).ok
    assert "the baseline itself" in one(both, np.ones(2)).reason


def test_a_dropped_last_chunk_is_refused_with_its_rows() -> None:
    after = VALUES.copy()
    after[48:] = 0
    found = one(VALUES, after)
    assert not found.ok
    assert "rows 48 to 49 of 50 are wrong, all before agree" in found.reason
    assert not one(VALUES, VALUES[:48]).ok


def test_one_wrong_row_in_a_million_is_beyond_the_default_tolerance() -> None:
    before = np.ones(10**6)
    after = before.copy()
    after[-1] = 0
    assert not one(before, after, Tolerance().outputs).ok


def test_whole_numbers_must_be_equal() -> None:
    assert one(np.arange(5), np.arange(5)).ok
    found = one(np.arange(5), np.array([0, 1, 2, 4, 4]), tolerance=1.0)
    assert not found.ok
    assert found.error == pytest.approx(0.2)
    assert found.where.startswith("[3]")


def test_against_exact_zeros_the_error_is_absolute() -> None:
    assert one(np.zeros(4), np.full(4, 1e-9)).error == pytest.approx(1e-9)
    assert not one(np.zeros(4), np.ones(4)).ok


def test_scalars_empty_and_complex_arrays_compare() -> None:
    assert one(np.float32(2.0), np.float32(2.0)).where == "[]: 2, baseline 2"
    assert one(np.empty((0, 3)), np.empty((0, 3))).ok
    assert one(np.array([1 + 1j]), np.array([1 - 1j])).error == pytest.approx(2 / np.sqrt(2))


def test_what_is_no_number_is_refused() -> None:
    assert "not an array of numbers" in one(np.array(["a"]), np.array(["a"])).reason


def test_a_missing_gradient_is_a_failure_whatever_the_tolerance() -> None:
    found = gradient("w", np.ones(3), None, 1e9)
    assert not found.ok
    assert "no gradient where the baseline has one" in found.reason


def test_a_zero_gradient_is_a_failure_whatever_the_tolerance() -> None:
    found = gradient("w", np.full(3, 1e-20), np.zeros(3), 1e9)
    assert not found.ok
    assert "zero gradient where the baseline has one" in found.reason


def test_a_gradient_where_the_baseline_has_none_is_a_failure() -> None:
    assert not gradient("w", None, np.ones(3), 1e-4).ok
    assert gradient("w", None, np.zeros(3), 1e-4).ok
    assert gradient("w", np.zeros(3), None, 1e-4).ok
    assert gradient("w", None, None, 1e-4).ok


def test_rounding_of_the_largest_gradient_is_no_error_in_the_smallest_but_a_wrong_one_is() -> None:
    # A bias before a normalisation has a gradient of rounding noise only: no two ways of computing it agree.
    noise, other = (RNG.normal(size=20).astype(np.float32) * np.float32(1e-8) for _ in range(2))
    weight = RNG.normal(size=1000).astype(np.float32)
    found = {c.name: c for c in compare(Probe({}, {"w": weight, "b": noise}), Probe({}, {"w": weight, "b": other}), Tolerance())}
    assert found["b"].ok
    small = np.float32(1e-4) * weight[:20]
    found = {
        c.name: c for c in compare(Probe({}, {"w": weight, "b": small}), Probe({}, {"w": weight, "b": 1.1 * small}), Tolerance())
    }
    assert not found["b"].ok
    assert found["b"].error == pytest.approx(0.1, rel=1e-3)


def test_outputs_only_one_side_has_are_refused() -> None:
    found = compare(Probe({"a": 1.0, "b": 1.0}), Probe({"a": 1.0, "c": 1.0}), Tolerance(), at="seed 3")
    assert {c.name: c.ok for c in found} == {"a": True, "b": False, "c": False}
    assert found[1].reason == "only the baseline has this output"
    assert found[2].where == "seed 3"


def test_the_points_processed_must_be_as_many() -> None:
    assert points(100, 100).ok
    found = points(100, 96)
    assert not found.ok
    assert found.error == pytest.approx(0.04)
    assert "96 points were processed, the baseline processed 100" in found.reason
