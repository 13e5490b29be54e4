"""Minima of energies along a bond, compared with the exact curve of H2."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.systems.vmc.analysis.bond_curve import Minimum, find_minimum

# Kolos and Wolniewicz 1965; the minimum is -1.174476 Ha at 1.4011 bohr.
H2 = {
    1.0: -1.124540,
    1.2: -1.164935,
    1.4: -1.174476,
    1.6: -1.168583,
    1.8: -1.155069,
    2.0: -1.138133,
    2.4: -1.102426,
    3.0: -1.057326,
    4.0: -1.016390,
}
LOWEST_HA, LOWEST_BOHR = -1.174476, 1.4011


def noisy(bonds: list[float], error: float, seed: int) -> Minimum:
    rng = np.random.default_rng(seed)
    energies = [H2[bond] + error * rng.normal() for bond in bonds]
    minimum = find_minimum(bonds, energies, [error] * len(bonds))
    assert isinstance(minimum, Minimum), minimum
    return minimum


def test_four_points_far_apart_have_an_error_bar_that_covers_the_truth() -> None:
    """A parabola through the three lowest gave -1.1782 Ha at 1.536 bohr."""
    bonds = [1.0, 1.4, 2.0, 4.0]
    minimum = find_minimum(bonds, [H2[bond] for bond in bonds], [5e-5] * 4)
    assert isinstance(minimum, Minimum) and minimum.points == 4
    assert abs(minimum.energy_ha - LOWEST_HA) < minimum.energy_error_ha < 2e-4
    assert abs(minimum.bond - LOWEST_BOHR) < minimum.bond_error < 0.06


def test_curves_that_agree_by_chance_do_not_shrink_the_error_bar() -> None:
    """The Morse and the Mie curve through the first four have nearly the same energy, 0.03 mHa too low."""
    bonds = [1.0, 1.4, 2.0, 3.0, 4.0]
    minimum = find_minimum(bonds, [H2[bond] for bond in bonds], [1e-5] * 5)
    assert isinstance(minimum, Minimum)
    assert abs(minimum.energy_ha - LOWEST_HA) < minimum.energy_error_ha < 1e-4
    assert abs(minimum.bond - LOWEST_BOHR) < minimum.bond_error < 0.05


@pytest.mark.parametrize("bonds", [[1.2, 1.4, 1.6, 1.8], [1.0, 1.2, 1.4, 2.0, 4.0], list(H2)[:6]])
def test_two_error_bars_cover_the_truth_in_most_scans(bonds: list[float]) -> None:
    minima = [noisy(bonds, error, seed) for error in (1e-4, 2e-3) for seed in range(4)]
    energies = [abs(one.energy_ha - LOWEST_HA) / one.energy_error_ha for one in minima]
    lengths = [abs(one.bond - LOWEST_BOHR) / one.bond_error for one in minima]
    assert sum(value < 2 for value in energies) >= 6 and max(energies) < 4
    assert sum(value < 2 for value in lengths) >= 6 and max(lengths) < 4


def test_a_morse_curve_is_recovered_with_its_depth_and_steepness() -> None:
    bonds = np.linspace(1.5, 4.0, 6)
    energies = -2.0 + 0.2 * (1 - np.exp(-1.3 * (bonds - 2.1))) ** 2
    minimum = find_minimum(list(bonds), list(energies), [1e-6] * 6)
    assert isinstance(minimum, Minimum)
    assert (minimum.bond, minimum.energy_ha) == (
        pytest.approx(2.1, abs=2e-3),
        pytest.approx(-2.0, abs=1e-4),
    )
    assert (minimum.steepness, minimum.depth_ha) == (
        pytest.approx(1.3, rel=0.02),
        pytest.approx(0.2, rel=0.05),
    )
    assert minimum.energy_at(bonds) == pytest.approx(energies, abs=1e-3)


def test_too_few_points_or_a_minimum_at_an_end_are_named_instead_of_a_result() -> None:
    assert find_minimum([1.0, 1.4, 2.0], [-1.12, -1.17, -1.13], [1e-4] * 3) == (
        "a curve needs at least 4 mixed points, and there are 3"
    )
    falling = [-1.0, -1.1, -1.2, -1.3]
    assert find_minimum([4.0, 3.0, 2.0, 1.0], falling, [1e-4] * 4) == (
        "the lowest point is the shortest: add shorter lengths"
    )
    assert "the longest: add longer" in str(find_minimum([1.0, 2.0, 3.0, 4.0], falling, [1e-4] * 4))


def test_points_whose_noise_hides_the_minimum_have_none() -> None:
    result = find_minimum([1.39, 1.40, 1.41, 1.42], [-1.1744, -1.1747, -1.1743, -1.1746], [1e-3] * 4)
    assert isinstance(result, str) or result.bond_error > 0.005
