"""Growth laws against closed forms: slopes, breaks, exponents, intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pinchpoint.core import growth_law as laws
from pinchpoint.core.records import Law

SIZES = np.geomspace(5e3, 1e6, 12).round()


def law_of(peaks, sizes=SIZES) -> Law:
    return laws.law(sizes, peaks, mode="train", variant="eager")


def test_exact_affine_peaks_give_slope_intercept_and_exponent_one():
    law = law_of(70e6 + 11_296 * SIZES)
    assert law.slope_bytes_per_point == pytest.approx(11_296, rel=1e-9)
    assert law.intercept_bytes == pytest.approx(70e6, rel=1e-9)
    assert law.exponent == pytest.approx(1.0, abs=1e-4)
    assert law.breaks == ()
    assert law.residual < 1e-12
    assert law.holdout_error == pytest.approx(0.0, abs=1e-12)
    # Exact data are known only up to the allocator's 512 B; over 1 M points this is below 0.01 B per
    # point.
    assert 0 < law.slope_high - law.slope_low < 0.02
    assert law.slope_low <= 11_296 <= law.slope_high


def test_a_law_survives_json():
    law = law_of(70e6 + 11_296 * SIZES)
    text = json.dumps({**vars(law)}, allow_nan=False)
    assert json.loads(text)["slope_bytes_per_point"] == law.slope_bytes_per_point


def test_constant_peaks_have_a_slope_interval_that_contains_zero():
    law = law_of(np.full(12, 5e6))
    assert law.slope_low <= 0 <= law.slope_high
    assert law.exponent is None


def test_growth_below_the_rounding_of_the_allocator_does_not_count_as_growth():
    peaks = 5e6 + np.ceil(0.0005 * SIZES / 512) * 512
    law = law_of(peaks)
    assert law.slope_low <= 0 <= law.slope_high


def test_a_known_break_is_found_where_two_lines_meet():
    # The maximum of two instants of a step: 70 MB + 1,000 B per point and 30 MB + 2,000 B per point, which
    # are equal at 40,000.
    law = law_of(np.maximum(70e6 + 1_000 * SIZES, 30e6 + 2_000 * SIZES))
    assert law.breaks == pytest.approx((40_000,), rel=1e-6)
    assert law.slope_bytes_per_point == pytest.approx(2_000, rel=1e-9)
    assert law.intercept_bytes == pytest.approx(30e6, rel=1e-6)
    assert [s["slope"] for s in law.segments] == pytest.approx([1_000, 2_000])
    assert law.holdout_error == pytest.approx(0, abs=1e-9)


def test_two_known_breaks_are_found():
    peaks = np.maximum.reduce([50e6 + 500 * SIZES, 30e6 + 1_500 * SIZES, -70e6 + 2_500 * SIZES])
    law = law_of(peaks)
    assert law.breaks == pytest.approx((20_000, 100_000), rel=1e-6)
    assert law.slope_bytes_per_point == pytest.approx(2_500, rel=1e-9)


def test_flat_beyond_the_chunk_is_a_flat_last_segment():
    law = law_of(20e6 + 8_000 * np.minimum(SIZES, 65_536))
    assert law.slope_low <= 0 <= law.slope_high
    assert law.segments[0]["slope"] == pytest.approx(8_000, rel=1e-6)


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
def test_a_power_law_above_an_intercept_gives_its_exponent(power):
    matches, low, high = laws.exponent(SIZES, 3e6 + 2e4 * SIZES**power)
    assert matches == pytest.approx(power, abs=2e-3)
    assert low is not None
    assert high is not None
    assert low - 1e-9 <= power <= high + 1e-9


def test_a_log_log_fit_without_intercept_would_have_missed_the_exponent():
    peaks = 70e6 + 100 * SIZES
    naive = np.polyfit(np.log(SIZES), np.log(peaks), 1)[0]
    matches, _, _ = laws.exponent(SIZES, peaks)
    assert naive < 0.7
    assert matches == pytest.approx(1.0, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 8, 12])
def test_slope_intervals_cover_the_truth_at_about_95_percent(count):
    sizes = np.geomspace(5e3, 1e6, count).round()
    rng = np.random.default_rng(count)
    hits, broken = 0, 0
    for seed in range(120):
        peaks = (70e6 + 11_296 * sizes) * (1 + 0.01 * rng.normal(size=count))
        fit = laws.fit(sizes, peaks, seed=seed)
        low, high = fit.interval(lambda curve: curve.slopes[-1])
        hits += low <= 11_296 <= high
        broken += bool(fit.curve.breaks)
    assert 0.88 <= hits / 120 <= 1.0
    assert broken / 120 <= 0.12  # noise does not produce breaks


@pytest.mark.slow
def test_slope_interval_of_a_broken_line_covers_the_truth():
    rng = np.random.default_rng(5)
    truth = np.maximum(70e6 + 1_000 * SIZES, 30e6 + 2_000 * SIZES)
    hits = 0
    for seed in range(60):
        fit = laws.fit(SIZES, truth * (1 + 0.003 * rng.normal(size=12)), seed=seed)
        low, high = fit.interval(lambda curve: curve.slopes[-1])
        hits += low <= 2_000 <= high
    assert hits / 60 >= 0.86


def test_the_largest_size_within_a_budget_inverts_the_curve():
    fit = laws.fit(SIZES, np.maximum(70e6 + 1_000 * SIZES, 30e6 + 2_000 * SIZES))
    size, low, high = fit.largest(1e9)
    assert size == pytest.approx((1e9 - 30e6) / 2_000, rel=1e-9)
    assert low <= size <= high
    assert fit.largest(90e6)[0] == pytest.approx(20_000, rel=1e-6)  # in the first segment
    assert fit.largest(10e6)[0] == 0  # below the intercept nothing fits
    assert laws.fit(SIZES, np.full(12, 5e6)).largest(1e9)[0] > 1e12  # nothing grows: no size is too large


def test_holdout_predicts_the_largest_size_from_the_smaller_ones():
    sizes = np.array([1e3, 2e3, 4e3, 8e3])
    peaks = np.array([2e6, 3e6, 5e6, 12e6])  # the first three are 1 MB + 1,000 B per point: 9 MB is predicted
    assert laws.holdout(sizes, peaks) == pytest.approx(abs(9 / 12 - 1))
    assert laws.holdout(sizes[:3], peaks[:3]) is None


def test_the_record_reproduces_the_fitted_value():
    law = law_of(np.maximum(70e6 + 1_000 * SIZES, 30e6 + 2_000 * SIZES))
    assert laws.value(law, 10_000) == pytest.approx(80e6)
    assert laws.value(law, 4_000_000) == pytest.approx(30e6 + 8e9)
    low, high = law.band[0][1:]
    assert low <= 70e6 + 1_000 * SIZES[0] <= high
