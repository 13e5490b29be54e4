"""GTH pseudopotentials in reciprocal space, compared with integrals of their published form in real space."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
special = pytest.importorskip("scipy.special")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data.crystals.gth import (  # noqa: E402
    Channel,
    Potential,
    harmonics,
    local_form,
    projector_forms,
    read_potentials,
)

RADII = np.linspace(1e-6, 16, 40_001)
TABLE = """
# a comment
Ti GTH-PBE-q12 GTH-PBE
    4    6    2
     0.38    2     8.7    -0.7
    3
     0.33    2     2.5     3.6
                          -4.7
     0.24    1    -4.6
     0.25    0
O GTH-PBE-q6 GTH-PBE
    2    4
     0.24    1   -16.6
    1
     0.22    1    18.3
"""


def integral(values):
    return float(np.trapezoid(values, RADII))


@pytest.mark.parametrize("degree", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_projectors_are_the_bessel_transform_of_the_published_ones(degree, number):
    radius, g = 0.6, 1.7
    power = degree + (4 * (number + 1) - 1) / 2
    shape = math.sqrt(2) * RADII ** (degree + 2 * number) * np.exp(-(RADII**2) / (2 * radius**2))
    shape /= radius**power * math.sqrt(math.gamma(power))
    assert integral(RADII**2 * shape**2) == pytest.approx(1)  # the published normalisation
    expected = 4 * math.pi * integral(RADII**2 * special.spherical_jn(degree, g * RADII) * shape)
    direction = torch.tensor([[0.3, -0.5, 0.81]], dtype=torch.float64)
    vectors = g * direction / direction.norm()
    forms = projector_forms(Channel(degree, radius, np.eye(3)), vectors)[:, number, 0]
    # The squares of the harmonics of a degree sum to (2 l + 1) / (4 pi) in every direction.
    size = math.sqrt((2 * degree + 1) / (4 * math.pi))
    assert float(forms.norm()) == pytest.approx(abs(expected) * size, rel=1e-6)


def test_the_local_potential_is_the_transform_of_the_published_one():
    z, r, c1, c2 = 6, 0.4, -3.0, 1.2
    potential = Potential("X", z, r, (c1, c2), ())
    g = 1.3
    y = RADII / r
    short = np.exp(-(y**2) / 2) * (c1 + c2 * y**2)
    # The error function tends to the potential of a point charge, whose transform is known.
    rest = -z / RADII * (special.erf(RADII / (math.sqrt(2) * r)) - 1)
    sine = np.sin(g * RADII) / (g * RADII)
    expected = 4 * math.pi * integral(RADII**2 * (short + rest) * sine) - 4 * math.pi * z / g**2
    assert float(local_form(potential, torch.tensor([g**2], dtype=torch.float64))) == pytest.approx(expected)
    at_zero = 4 * math.pi * integral(RADII**2 * (short + rest))
    assert float(local_form(potential, torch.tensor([0.0], dtype=torch.float64))) == pytest.approx(at_zero)


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_harmonics_are_orthonormal_on_the_sphere(degree):
    nodes, weights = np.polynomial.legendre.leggauss(8)
    angles = 2 * np.pi * np.arange(16) / 16
    z, phi = np.meshgrid(nodes, angles, indexing="ij")
    sine = np.sqrt(1 - z**2)
    points = np.stack([sine * np.cos(phi), sine * np.sin(phi), z], axis=-1).reshape(-1, 3)
    each = np.repeat(weights, 16) * 2 * np.pi / 16
    values = harmonics(degree, torch.from_numpy(points)).numpy()
    assert np.allclose((values * each) @ values.T, np.eye(2 * degree + 1))


def test_higher_degrees_are_refused():
    with pytest.raises(BadInput, match="degree 3"):
        harmonics(3, torch.zeros(1, 3))


def test_a_table_is_read_with_its_symmetric_strengths(tmp_path):
    path = tmp_path / "potentials"
    path.write_text(TABLE)
    potential = read_potentials(path, {"Ti", "O"})["Ti"]
    assert (potential.valence, potential.radius, potential.coefficients) == (12, 0.38, (8.7, -0.7))
    assert [channel.degree for channel in potential.channels] == [0, 1]  # the last one has no projectors
    assert potential.channels[0].strengths.tolist() == [[2.5, 3.6], [3.6, -4.7]]
    with pytest.raises(BadInput, match="Hf"):
        read_potentials(path, {"Hf", "O"})
