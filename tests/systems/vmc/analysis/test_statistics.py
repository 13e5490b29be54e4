"""Error bars cover, R-hat tells strangers apart, a line is read at zero."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.analysis.statistics import block_estimate, rhat, zero_variance


def chains(steps: int, count: int, memory: float, seed: int) -> np.ndarray:
    """AR(1) chains (steps, count) of variance 1, mean 0; one step remembers `memory` of the last."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(steps, count)) * np.sqrt(1 - memory**2)
    out = np.empty_like(noise)
    last = rng.normal(size=count)
    for at in range(steps):
        last = memory * last + noise[at]
        out[at] = last
    return out


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_the_error_bar_of_an_ar1_series_is_the_closed_form(memory: float) -> None:
    series = chains(8192, 16, memory, 1)
    found = [block_estimate(series[:, at]) for at in range(16)]
    inefficiency = (1 + memory) / (1 - memory)
    assert np.mean([f.error for f in found]) == pytest.approx(np.sqrt(inefficiency / 8192), rel=0.12)
    assert np.mean([f.autocorrelation for f in found]) == pytest.approx(inefficiency, rel=0.25)


@pytest.mark.parametrize(("steps", "count"), [(2048, 1), (256, 8), (64, 64), (10, 512)])
def test_two_error_bars_cover_the_mean_of_correlated_chains(steps: int, count: int) -> None:
    covered = [
        abs((f := block_estimate(chains(steps, count, 0.7, seed))).mean) <= 2 * f.error for seed in range(300)
    ]
    assert 0.90 <= np.mean(covered) <= 0.99


def test_an_estimate_holds_its_own_law() -> None:
    found = block_estimate(chains(500, 3, 0.6, 0))
    assert found.error**2 == pytest.approx(found.variance * found.autocorrelation / found.samples)
    assert found.samples == 1500


def test_a_constant_series_has_no_error() -> None:
    found = block_estimate(np.full((100, 4), -0.5))
    assert (found.mean, found.error, found.variance) == (-0.5, 0.0, 0.0)


def test_rhat_is_one_for_chains_of_one_distribution_and_more_for_strangers() -> None:
    same = chains(4000, 8, 0.5, 0)
    assert rhat(same) < 1.01
    assert rhat(same + np.arange(8)) > 1.5
    drifting = same + np.linspace(0, 3, 4000)[:, None]  # each chain alike, none at rest: only the halves tell
    assert rhat(drifting) > 1.2
    assert rhat(np.ones((10, 2))) == 1.0


def test_the_energy_at_zero_variance_is_read_off_a_line() -> None:
    rng = np.random.default_rng(0)
    variances = np.linspace(0.02, 0.2, 12)
    exact = zero_variance(-1.1 + 0.3 * variances, variances)
    assert exact.energy == pytest.approx(-1.1, abs=1e-12) and exact.slope == pytest.approx(0.3)
    errors = np.full(12, 1e-3)
    pulls = []
    for _ in range(300):
        found = zero_variance(-1.1 + 0.3 * variances + rng.normal(scale=errors), variances, errors)
        pulls.append((found.energy + 1.1) / found.error)
    assert np.std(pulls) == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize("bad", [np.zeros(1), np.zeros((2, 2, 2)), np.array([1.0, np.nan, 2.0])])
def test_a_series_that_cannot_be_averaged_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(BadInput):
        block_estimate(bad)


def test_too_little_for_rhat_or_a_line_is_refused() -> None:
    with pytest.raises(BadInput):
        rhat(np.zeros((3, 2)))
    with pytest.raises(BadInput):
        zero_variance([1.0, 2.0], [0.1, 0.2])
    with pytest.raises(BadInput):
        zero_variance([1.0, 2.0, 3.0], [0.1, 0.1, 0.1])
    with pytest.raises(BadInput):
        zero_variance([1.0, np.inf, 3.0], [0.1, 0.2, 0.3])
