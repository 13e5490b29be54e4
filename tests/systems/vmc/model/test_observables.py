"""Observables compared with closed forms and with integrals of Hartree-Fock determinants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.analysis.observables import Collector
from pinchpoint.systems.vmc.data.gto import HartreeFock, orbital_blocks
from pinchpoint.systems.vmc.data.hartree_fock import orbitals_for
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.determinants import sum_of_determinants
from pinchpoint.systems.vmc.model.observables import dipole, least_spin_squared, quadrupole, spin_excess
from pinchpoint.systems.vmc.optimization.optimizers import energy_gradient
from pinchpoint.systems.vmc.optimization.sample_energies import make_measure
from pinchpoint.systems.vmc.optimization.sampling import Walkers, moves, start
from pinchpoint.systems.vmc.optimization.training_step import begin, make_steps
from pinchpoint.systems.vmc.settings import Settings

THETA = 0.6
EXPONENTS = (3.0, 0.75)


@dataclass(frozen=True)
class Signed:
    """A wave function in closed form with a sign."""

    system: System
    init: Callable[[Any], Any]
    sign_and_log: Callable[[Any, Any], tuple[Any, Any]]
    copies: int = 1

    @property
    def signature(self) -> System:
        return self.system

    def at(self, nuclei: Any) -> Signed:
        return self

    def log(self, params: Any, x: Any) -> Any:
        return self.sign_and_log(params, x)[1]


def mixture() -> Signed:
    """cos(t) times the singlet and sin(t) times the triplet of two orbitals; no nodes at THETA."""

    def sign_and_log(params: Any, x: Any) -> tuple[Any, Any]:
        r = jnp.sqrt(jnp.sum(x**2, axis=-1))
        inner, outer = (a**1.5 * jnp.exp(-a * r) for a in EXPONENTS)
        direct, exchanged = inner[0] * outer[1], outer[0] * inner[1]
        t = params["t"]
        psi = jnp.cos(t) * (direct + exchanged) + jnp.sin(t) * (direct - exchanged)
        return jnp.sign(psi), jnp.log(jnp.abs(psi))

    return Signed(system_of("He"), lambda _: {"t": jnp.asarray(THETA)}, sign_and_log)


def mixture_spin(t: float) -> float:
    """S^2 of the mixture: that of a triplet, 2, times the weight of the triplet."""
    a, b = EXPONENTS
    overlap = (2 * math.sqrt(a * b) / (a + b)) ** 3
    singlet, triplet = math.cos(t) ** 2 * (1 + overlap**2), math.sin(t) ** 2 * (1 - overlap**2)
    return 2 * triplet / (singlet + triplet)


def bonded(system: System) -> Signed:
    """One electron in e^(-a r) on both of two nuclei."""

    def sign_and_log(params: Any, x: Any) -> tuple[Any, Any]:
        apart = jnp.sqrt(jnp.sum((x[0] - jnp.asarray(system.positions, x.dtype)) ** 2, axis=-1))
        return jnp.ones((), x.dtype), jax.nn.logsumexp(-params["a"] * apart)

    return Signed(system, lambda _: {"a": jnp.asarray(1.2)}, sign_and_log)


def bonded_energy(bond: float, a: float) -> float:
    """The energy of `bonded` for two protons, by the integrals over Slater functions."""
    w = a * bond
    overlap = math.exp(-w) * (1 + w + w * w / 3)
    other = 1 / bond - math.exp(-2 * w) * (a + 1 / bond)  # attraction of one proton to the other's electron
    shared = a * math.exp(-w) * (1 + w)
    own = a * a / 2 - a - other
    return (own - a * a / 2 * overlap + (a - 2) * shared) / (1 + overlap) + 1 / bond


def determinant(system: System, field: HartreeFock) -> Signed:
    """The determinant of Hartree-Fock."""

    def sign_and_log(params: Any, x: Any) -> tuple[Any, Any]:
        del params
        return sum_of_determinants([block[None] for block in orbital_blocks(field, system, x)])

    return Signed(system, lambda _: {}, sign_and_log)


def samples(wave: Signed, *, walkers: int, count: int, width: float) -> tuple[Any, list[Any]]:
    """Parameters, and `count` sets of walkers (B, n, 3) that follow |psi|^2."""
    params = jax.tree_util.tree_map(jnp.asarray, wave.init(None))
    x = start(wave.system, walkers, jax.random.key(1), dtype=jnp.float32)

    def turn(state: Any, number: Any) -> tuple[Any, Any]:
        key = jax.random.fold_in(jax.random.key(2), number)
        state, _ = moves(wave.log, params, state, key, steps=20)
        return state, state.x

    def run(x: Any) -> Any:
        log = jax.vmap(wave.log, (None, 0))(params, x)
        return jax.lax.scan(turn, Walkers(x, log, jnp.float32(width)), jnp.arange(count + 20))[1]

    return params, list(jax.jit(run)(x)[20:])


def estimates(wave_of: Callable[[System], Signed], system: System, params: Any, sets: list[Any]) -> Any:
    measure = make_measure(wave_of, system, Settings(walkers=len(sets[0]), method="hessian"))
    collector = Collector(system, least_spin_squared=least_spin_squared(system))
    for x in sets:
        collector.add(np.asarray(x), measure(params, x))
    return collector.estimates()


def close(estimate: dict[str, Any], truth: Any, *, most: float) -> None:
    """Within four standard errors, none of which is above `most`."""
    error = np.asarray(estimate["error"])
    assert error.max() < most
    assert (np.abs(np.asarray(estimate["value"]) - truth) <= 4 * error + 1e-5).all(), (estimate, truth)


def by_walkers(values: np.ndarray) -> dict[str, Any]:
    """Mean and standard error of (T, B, ...): walkers are independent, samples of one are not."""
    means = values.mean(axis=0)
    return {"value": means.mean(axis=0), "error": means.std(axis=0, ddof=1) / len(means) ** 0.5}


def test_the_spin_and_the_gradient_of_its_excess_are_those_of_a_known_mixture() -> None:
    wave = mixture()
    params, sets = samples(wave, walkers=300, count=20, width=0.6)
    x = jnp.stack(sets)
    many = jax.vmap(jax.vmap(lambda walker: spin_excess(wave.sign_and_log, wave.system, params, walker)))
    excess = np.array(jax.jit(many)(x))
    close(by_walkers(excess), mixture_spin(THETA), most=0.05)
    gradient = float(energy_gradient(wave.log, params, x.reshape(-1, 2, 3), jnp.asarray(excess.ravel()))[0])
    slope = (mixture_spin(THETA + 1e-4) - mixture_spin(THETA - 1e-4)) / 2e-4
    assert gradient == pytest.approx(slope, rel=0.15) and slope > 1


def test_a_restricted_determinant_is_a_singlet_at_every_place_and_a_pure_triplet_has_two() -> None:
    lithium = system_of("LiH")
    wave = determinant(lithium, orbitals_for(lithium))
    x = start(lithium, 20, jax.random.key(3))
    excess = jax.jit(jax.vmap(lambda walker: spin_excess(wave.sign_and_log, lithium, {}, walker)))(x)
    assert np.allclose(excess, 0, atol=1e-3)
    triplet = mixture()
    x = start(triplet.system, 20, jax.random.key(4))
    params = {"t": jnp.asarray(math.pi / 2)}
    pure = jax.jit(jax.vmap(lambda walker: spin_excess(triplet.sign_and_log, triplet.system, params, walker)))
    excess = pure(x)
    assert np.allclose(excess, 2, atol=1e-2)
    assert least_spin_squared(system_of("O2")) == 2.0 and least_spin_squared(system_of("Li")) == 0.75


def test_a_penalty_takes_the_triplet_out_of_a_mixture() -> None:
    wave = mixture()
    angles = []
    for penalty in (0.0, 3.0):
        settings = Settings(
            walkers=100,
            moves=5,
            burn=20,
            steps=30,
            optimizer="adam",
            adam_rate=0.04,
            method="hessian",
            spin_penalty=penalty,
        )
        carry, _ = make_steps(wave, settings, 30)(begin(wave, settings))
        angles.append(abs(float(carry.params["t"])))
    assert angles[1] < 0.22 and angles[0] - angles[1] > 0.1


def test_a_penalty_for_walkers_of_several_states_is_refused() -> None:
    wave = mixture()
    settings = Settings(walkers=2, burn=0, optimizer="adam", spin_penalty=1.0)
    with pytest.raises(BadInput, match="several states"):
        begin(wave, settings, x=np.ones((2, 4, 3)))


def test_forces_are_differences_of_the_energy_of_the_same_wave_function() -> None:
    bond, a, step = 1.6, 1.2, 1e-4
    system = system_of("H2", charge=1, bond=bond)
    params, sets = samples(bonded(system), walkers=500, count=16, width=0.8)
    slope = (bonded_energy(bond + step, a) - bonded_energy(bond - step, a)) / (2 * step)
    result = estimates(bonded, system, params, sets)
    close(result["forces"], [[0, 0, slope], [0, 0, -slope]], most=0.02)
    assert abs(slope) > 0.05
    assert result["spin_squared"]["value"] == pytest.approx(0.75)


def test_moments_of_a_hartree_fock_determinant_are_its_integrals() -> None:
    pyscf = pytest.importorskip("pyscf")
    system = system_of("LiH")
    atoms = list(zip(system.symbols, system.positions, strict=True))
    molecule = pyscf.gto.M(atom=atoms, unit="Bohr", basis="cc-pvdz", verbose=0)
    field = pyscf.scf.RHF(molecule)
    field.kernel()
    density, charges = field.make_rdm1(), np.array(system.charges)
    centre = charges @ np.array(system.positions) / charges.sum()
    with molecule.with_common_orig(centre):
        first = np.einsum("xij,ji->x", molecule.intor("int1e_r"), density)
        second = np.einsum("xij,ji->x", molecule.intor("int1e_rr"), density).reshape(3, 3)
    nuclei = np.array(system.positions) - centre
    moments = np.einsum("m,ma,mb->ab", charges, nuclei, nuclei) - second
    wave = determinant(system, orbitals_for(system))
    _, sets = samples(wave, walkers=200, count=10, width=0.4)
    for of, truth, most in (
        (dipole, -first, 0.2),
        (quadrupole, (3 * moments - np.trace(moments) * np.eye(3)) / 2, 1.2),
    ):
        each = np.array(
            jax.jit(jax.vmap(jax.vmap(lambda walker, of=of: of(system, walker))))(jnp.stack(sets))
        )
        close(by_walkers(each), truth, most=most)
    assert abs(first[2]) > 2
