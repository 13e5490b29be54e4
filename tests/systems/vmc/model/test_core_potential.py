"""Energies in pseudopotentials against projections in closed form, numerical integrals and PySCF."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.systems.vmc.data.gto import evaluate
from pinchpoint.systems.vmc.data.hartree_fock import included, solve
from pinchpoint.systems.vmc.data.pseudopotentials import pseudopotentials
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.core_potential import icosahedron, nearby_cores, nonlocal_energy
from pinchpoint.systems.vmc.model.hamiltonian import local_energies, potential
from pinchpoint.systems.vmc.model.wavefunction import wave_function

GALLIUM = System("Ga", ("Ga",), (31,), ((0.0, 0.0, 0.0),), 1, 0, "ccecp")


def channel(symbol: str, degree: int, r: float) -> float:
    """The non-local potential of one angular momentum, term by term."""
    terms = pseudopotentials("ccecp", (symbol,))[0].channels[degree]
    return sum(c * r ** (n - 2) * math.exp(-a * r * r) for n, a, c in terms)


def signed(value: Any) -> tuple[Any, Any]:
    return jnp.sign(value), jnp.log(jnp.abs(value))


def test_s_p_and_d_parts_of_an_electron_each_feel_their_own_channel() -> None:
    def parts(x: Any) -> Any:
        wide = jnp.exp(-0.6 * jnp.sum(x**2))
        return jnp.stack([0.7 * wide, (0.3 * x[0] - 0.5 * x[2]) * wide, 0.4 * (x[0] ** 2 - x[1] ** 2) * wide])

    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 1, 3)))
        each = jax.jit(
            jax.vmap(lambda y: nonlocal_energy(lambda _, z: signed(jnp.sum(parts(z[0]))), GALLIUM, None, y))
        )(x)
        for walker, energy in zip(x, each, strict=True):
            values = np.asarray(parts(walker[0]))
            r = float(np.linalg.norm(walker))
            wanted = sum(channel("Ga", degree, r) * values[degree] for degree in range(3)) / values.sum()
            # Degrees add up to 4, which 12 points integrate exactly however they are turned.
            assert float(energy) == pytest.approx(wanted, rel=1e-10, abs=1e-12)


def test_the_mean_over_rotations_is_the_projection_of_an_orbital_elsewhere() -> None:
    system = System("pair", ("Si", "O"), (14, 8), ((0.0, 0.0, 0.0), (0.0, 0.0, 9.0)), 1, 0, "ccecp")
    centre, r = np.array([0.9, 0.0, 0.4]), 0.8

    def psi(x: Any) -> Any:
        return jnp.exp(-1.5 * jnp.sum((x - centre) ** 2, axis=-1))

    # All electrons are at nearly the same place, where each has a rotation of its own.
    rng = np.random.default_rng(1)
    direction = np.array([0.3, 0.5, -0.8]) / np.linalg.norm([0.3, 0.5, -0.8])
    x = r * direction + 1e-4 * rng.normal(size=(3000, 1, 3))
    with jax.enable_x64(True):
        energies = np.asarray(
            jax.jit(jax.vmap(lambda y: nonlocal_energy(lambda _, z: signed(psi(z[0])), system, None, y)))(
                jnp.asarray(x)
            )
        )
    cosines, weights = np.polynomial.legendre.leggauss(40)
    angles = np.linspace(0, 2 * np.pi, 80, endpoint=False)
    sines = np.sqrt(1 - cosines**2)
    sphere = np.stack(
        [
            sines[:, None] * np.cos(angles),
            sines[:, None] * np.sin(angles),
            np.broadcast_to(cosines[:, None], (40, 80)),
        ],
        axis=-1,
    )
    values = np.asarray(psi(r * sphere)) * weights[:, None] / 160
    s = values.sum()
    p = 3 * (values * (sphere @ direction)).sum()
    wanted = (channel("Si", 0, r) * s + channel("Si", 1, r) * p) / float(psi(r * direction))
    error = float(energies.std()) / math.sqrt(len(energies))
    assert error < 1e-3 * abs(wanted)
    assert float(energies.mean()) == pytest.approx(wanted, abs=4 * error)


def test_one_electron_in_silicon_has_the_energy_of_pyscf() -> None:
    pytest.importorskip("pyscf")
    system = system_of("Si", charge=3, pseudopotential="ccecp")
    field = solve(system)

    def sign_and_log(_: Any, x: Any) -> tuple[Any, Any]:
        return signed(evaluate(field, system, x, coefficients=field.up)[0, 0])

    nodes, weights = np.polynomial.legendre.leggauss(120)
    r, weights = 6 * (nodes + 1), 6 * weights
    x = r[:, None, None] * np.array([0.6, 0.0, 0.8])
    with jax.enable_x64(True):
        energies_of = local_energies(
            lambda _, y: sign_and_log(_, y)[1], system, method="hessian", sign_and_log=sign_and_log
        )
        local = np.asarray(jax.jit(energies_of)(None, jnp.asarray(x)))
        psi = np.exp(np.asarray(jax.vmap(lambda y: sign_and_log(None, y)[1])(jnp.asarray(x))))
    # The orbital is round: the mean of the local energy is an integral over the distance.
    density = weights * r**2 * psi**2
    assert (density @ local) / density.sum() == pytest.approx(field.energy_ha, abs=1e-6)


def test_the_potential_is_coulomb_far_from_the_cores_and_finite_at_them() -> None:
    system = system_of("ScO", pseudopotential="ccecp")
    far = np.random.default_rng(2).normal(loc=(60.0, 0.0, 0.0), size=(system.electrons, 3))
    pairs = [np.linalg.norm(a - b) for i, a in enumerate(far) for b in far[:i]]
    attraction = [
        charge / np.linalg.norm(electron - place)
        for electron in far
        for charge, place in zip((11, 6), system.positions, strict=True)
    ]
    wanted = sum(1 / apart for apart in pairs) - sum(attraction) + 66 / 3.152
    assert float(potential(system, jnp.asarray(far))) == pytest.approx(wanted, rel=1e-5)
    at_core = jnp.asarray(far).at[0].set(jnp.asarray(system.positions[0]))
    assert np.isfinite(float(potential(system, at_core)))


@pytest.mark.parametrize("symbol", ["H", "N", "Si", "Fe", "Kr"])
def test_the_singular_terms_cancel_the_charge_of_every_core(symbol: str) -> None:
    system = System(symbol, (symbol,), system_of(symbol).charges, ((0.0, 0.0, 0.0),), 1, 0, "ccecp")
    core = pseudopotentials("ccecp", (symbol,))[0]
    singular = sum(c for n, _, c in core.local if n == 1)
    assert singular == pytest.approx(system.core_charges[0], rel=1e-6)


def test_only_cores_whose_spheres_overlap_are_integrated_over() -> None:
    places = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 6.0]])
    assert nearby_cores(places, np.array([1.0, 1.0, 1.0])) == 1
    assert nearby_cores(places, np.array([2.0, 2.0, 2.0])) == 3  # the middle one overlaps both others
    reaches = [core.reach_bohr for core in pseudopotentials("ccecp", ("Sc", "O", "H"))]
    assert reaches[2] == 0 and nearby_cores(np.array([[0, 0, 0], [0, 0, 3.152]]), np.array(reaches[:2])) == 1
    assert all(channel("Sc", degree, reaches[0]) < 1e-5 for degree in (0, 1))


def test_the_corners_of_an_icosahedron_integrate_degree_five() -> None:
    points = icosahedron()
    assert points.shape == (12, 3) and np.allclose(np.linalg.norm(points, axis=1), 1)
    assert np.allclose(points.T @ points / 12, np.eye(3) / 3) and np.allclose(points.sum(axis=0), 0)
    assert np.mean(points[:, 0] ** 4) == pytest.approx(1 / 5)
    assert np.mean(points[:, 0] ** 2 * points[:, 1] ** 2) == pytest.approx(1 / 15)


def test_a_network_has_no_cusp_at_a_core() -> None:
    system = system_of("Be", pseudopotential="ccecp")
    wave = wave_function(system, NetConfig("ferminet", one=4, two=2, layers=1, determinants=1))
    step = 1e-3
    x = jnp.tile(jnp.array([[0.0, 0.0, 0.0], [0.3, -0.5, 0.9]]), (3, 1, 1))
    x = x.at[:, 0, 2].set(jnp.array([-step, 0.0, step]))
    params = jax.jit(wave.init)(jax.random.key(0))
    below, middle, above = jax.jit(jax.vmap(wave.log, (None, 0)))(params, x)
    assert "cusp" not in params
    # With all electrons, the slope would change by -2 Z = -8.
    assert abs(float(below + above - 2 * middle)) / step < 0.1


@pytest.mark.parametrize("name", ["Ne", "Si", "ScO"])
def test_orbitals_with_pseudopotentials_are_packaged(name: str) -> None:
    system = system_of(name, pseudopotential="ccecp")
    field = included(system)
    assert field is not None and field.fits(system) and not field.fits(system_of(name))
    assert included(system_of("Ne")) is not None
