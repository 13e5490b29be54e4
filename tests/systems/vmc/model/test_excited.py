"""Several states at once: exact states of hydrogen, exchanged copies, and the energy of each state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.evaluate import evaluate, states_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.excited import init_states, total_sign_and_log
from pinchpoint.systems.vmc.model.hamiltonian import state_matrices, walker_energies
from pinchpoint.systems.vmc.model.layers import positive
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization.driver import floor_ha
from pinchpoint.systems.vmc.optimization.sampling import start
from pinchpoint.systems.vmc.train import train

LEVELS = (-0.5, -0.125, -0.125)


def hydrogen_states() -> WaveFunction:
    """Mixtures of 1s, 2s and 2pz of hydrogen, whose weights are the parameters."""
    system = system_of("H")
    config = NetConfig("ferminet", one=1, two=1, layers=1, determinants=1, states=3)

    def sign_and_log(params: Any, x: Any) -> tuple[Any, Any]:
        r = jnp.sqrt(jnp.sum(x[0] ** 2))
        far = jnp.exp(-r / 2)
        value = jnp.sum(params * jnp.stack([jnp.exp(-r), (1 - r / 2) * far, x[0, 2] * far]))
        return jnp.sign(value), jnp.log(jnp.abs(value))

    def init(key: Any, state: int = 0) -> Any:
        return jax.random.normal(key, (3,))

    single = WaveFunction(system, config, init, sign_and_log, lambda params, x: ())
    return WaveFunction(
        system, config, init_states(init, 3), total_sign_and_log(sign_and_log, 3), single.orbitals, single
    )


@pytest.mark.parametrize(
    ("atom", "up", "down"),
    [
        # 1s2s with either electron in 2s, from which the triplet and the singlet follow; lithium has one
        # outer electron, whose second orbital is 2p with the exponent of 2s.
        ("He", [[1.7], [1.7], [0.5]], [[1.7], [0.5], [1.7]]),
        ("Li", [[2.7, 0.65]] * 3, [[2.7]] * 3),
    ],
)
def test_excited_states_of_an_atom_start_with_an_outer_electron_higher(
    atom: str, up: list[list[float]], down: list[list[float]]
) -> None:
    wave = wave_function(system_of(atom), NetConfig.preset("report-cpu", one=4, two=2, states=3))
    params = wave.init(jax.random.key(0))
    exponents = positive(params["envelope"]["up"]["sigma"])[:, 0, 0]
    assert np.allclose(exponents, np.concatenate([up, down], axis=1), atol=1e-5)
    # The round 2s of helium starts with the value of its envelope, a directed 2p with zero.
    biases = params["orbital"]["up"]["bias"]
    assert np.array_equal(biases[:, wave.system.up - 1], [1, 1, 1] if atom == "He" else [1, 0, 0])


def test_any_mixture_of_exact_states_has_their_energies_in_every_sample() -> None:
    wave = hydrogen_states()
    with jax.enable_x64(True):
        params = wave.init(jax.random.key(3))
        x = start(wave.system, 16, jax.random.key(0), dtype=jnp.float64, copies=wave.copies)
        matrices_of = state_matrices(wave, method="hessian")
        assert matrices_of is not None and x.shape == (16, 3, 3)
        matrices, sums = jax.jit(
            lambda p, y: (matrices_of(p, y), walker_energies(wave, method="hessian", chunk=4)(p, y))
        )(params, x)
        # Two copies exchanged: as for electrons, the sign changes and nothing else.
        (sign, log), (other, same) = (
            wave.sign_and_log(params, y) for y in (x[0], x[0][jnp.array([1, 0, 2])])
        )
    assert np.allclose(sums, sum(LEVELS), atol=1e-7)
    values = np.sort(np.linalg.eigvals(np.asarray(matrices)).real, axis=1)
    assert np.allclose(values, LEVELS, atol=1e-5)
    assert float(sign) == -float(other) and float(log) == pytest.approx(float(same))


def test_the_energies_of_the_states_and_their_errors_are_those_of_their_series() -> None:
    rng = np.random.default_rng(0)
    mixture = rng.normal(size=(3, 3))
    noise = rng.normal(size=(200, 8, 3)) * [0.01, 0.02, 0.04]
    local = np.array([-2.9, -2.2, -2.1]) + noise
    inverse = np.linalg.inv(mixture)
    matrices = np.einsum("ik,tbk,kj->tbij", inverse, local, mixture)
    states = states_of(matrices, (-2.9, -2.2))
    for at, state in enumerate(states):
        assert state["energy_ha"] == pytest.approx(local[..., at].mean(), abs=1e-6)
        assert state["variance"] == pytest.approx(local[..., at].var(), rel=1e-3)
        assert state["error_ha"] == pytest.approx([0.01, 0.02, 0.04][at] / 40, rel=0.4)
        assert state["excitation_ha"] == pytest.approx((local[..., at] - local[..., 0]).mean(), abs=1e-6)
    assert [state["reference_ha"] for state in states] == [-2.9, -2.2, None]


def test_two_states_of_hydrogen_train_and_are_evaluated(tiny_network: dict[str, Any], tmp_path: Path) -> None:
    options = {**tiny_network, "states": 2, "walkers": 64, "adam_rate": 0.02, "steps": 60}
    record = train("H", tmp_path / "run", **options)
    assert record.states == 2 and record.reference_ha == -0.625
    assert record.energy_ha is not None and record.energy_ha < -0.4
    energy = evaluate(tmp_path / "run", samples=60, device="cpu")
    low, high = energy.states
    assert low["energy_ha"] == pytest.approx(-0.5, abs=0.05) and low["reference_ha"] == -0.5
    assert low["energy_ha"] < high["energy_ha"] and high["excitation_ha"] > 0.2
    assert energy.energy_ha == pytest.approx(low["energy_ha"] + high["energy_ha"], abs=1e-4)
    assert energy.reference_ha is None and any(name == "state 1" for name, _ in energy.summary())
    with pytest.raises(BadInput, match=r"another network: states \(was 2, is 3\)"):
        train("H", tmp_path / "run", resume=True, states=3, device="cpu")
    refused: tuple[dict[str, Any], ...] = ({"cube": tmp_path / "density.cube"}, {"observables": True})
    for option in refused:
        with pytest.raises(BadInput, match="is of 2 states"):
            evaluate(tmp_path / "run", samples=60, device="cpu", **option)


def test_references_are_those_of_the_states_of_the_same_spin() -> None:
    assert system_of("He").states_ha[:3] == (-2.903724, -2.175229, -2.145974)
    assert system_of("He", spin=2).states_ha == () and system_of("H2", bond=2.0).states_ha == ()
    assert system_of("LiH").states_ha == (-8.070548, -7.950241)
    assert floor_ha(system_of("He"), states=3) == -12.0


def test_states_are_counted_and_not_pretrained(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="11 states"):
        NetConfig.preset("small", states=11)
    with pytest.raises(BadInput, match="single state, but 2"):
        train("He", tmp_path / "run", states=2, pretrain=10)
    with pytest.raises(BadInput, match="spin penalty selects a single state"):
        train("He", tmp_path / "run", states=2, spin_penalty=0.1)
