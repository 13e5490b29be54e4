"""Neural wave functions: signs, decay, cusps, gradients, Laplacians, and the cases with closed forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.systems.vmc.exact import hydrogenic, independent_energy

from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.determinants import sum_of_determinants
from pinchpoint.systems.vmc.model.features import geometry, one_electron, two_electrons
from pinchpoint.systems.vmc.model.ferminet import streams
from pinchpoint.systems.vmc.model.hamiltonian import local_energy, potential
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function

FERMINET = NetConfig("ferminet", one=8, two=4, layers=2, determinants=2)
APART = dataclasses.replace(FERMINET, full=False)
PSIFORMER = NetConfig("psiformer", one=8, two=4, layers=2, determinants=2, heads=2)
CASES = {
    "hydrogen": (FERMINET, system_of("H")),
    "hydrogen-attention": (PSIFORMER, system_of("H")),
    "lithium": (FERMINET, system_of("Li")),
    "lithium-hydride": (FERMINET, system_of("LiH")),
    "lithium-hydride-apart": (APART, system_of("LiH")),
    "lithium-hydride-attention": (PSIFORMER, system_of("LiH")),
    "beryllium-all-up": (FERMINET, system_of("Be", spin=4)),
    "helium-all-up-attention": (PSIFORMER, system_of("He", spin=2)),
}


ROWS = 8  # of every call of `logs`: one compilation a case


@dataclasses.dataclass(frozen=True)
class Case:
    wave: WaveFunction
    params: Any
    values: Callable[[Any, Any], Any]  # compiled, of (ROWS, n, 3)

    def sign_and_log(self, x: np.ndarray, params: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Of up to ROWS walkers x: (B, n, 3)."""
        padded = np.concatenate([x, np.repeat(x[-1:], ROWS - len(x), axis=0)])
        sign, log = self.values(self.params if params is None else params, padded)
        return np.asarray(sign)[: len(x)], np.asarray(log)[: len(x)]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """jit that compiles fast to slower code: these programs run once or twice."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {name: made(system, config) for name, (config, system) in CASES.items()}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


def made(system: System, config: NetConfig) -> Case:
    wave = wave_function(system, config)
    return Case(wave, filled(wave), compiled(jax.vmap(wave.sign_and_log, (None, 0))))


def filled(wave: WaveFunction) -> Any:
    """Parameters of random numbers: the zeros and ones of the start would hide a weight that is not used."""
    with jax.enable_x64(True):
        leaves, tree = jax.tree.flatten(jax.eval_shape(wave.init, jax.random.key(0)))
    rng = np.random.default_rng(0)
    return tree.unflatten(
        [
            rng.normal(size=leaf.shape) / max(leaf.shape[0] if leaf.ndim > 1 else 4, 1) ** 0.5
            for leaf in leaves
        ]
    )


def walker(system: System, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(system.electrons, 3))


def swapped(x: np.ndarray, i: int, j: int) -> np.ndarray:
    other = x.copy()
    other[[i, j]] = other[[j, i]]
    return other


def slope(values: np.ndarray, step: float) -> float:
    """At 0 of a curve given at 1, 2 and 3 steps: exact for a parabola."""
    return float((-5 * values[0] + 8 * values[1] - 3 * values[2]) / (2 * step))


def test_a_swap_of_equal_spins_flips_the_sign_and_keeps_the_size(case: Case) -> None:
    system = case.wave.system
    x = walker(system)
    pairs = [(0, 1)] * (system.up > 1) + [(system.up, system.up + 1)] * (system.down > 1)
    signs, logs = case.sign_and_log(np.stack([x, *(swapped(x, *pair) for pair in pairs)]))
    assert np.all(signs[1:] == -signs[0]) and np.all(np.abs(logs - logs[0]) < 1e-10)


def test_a_swap_of_opposite_spins_gives_another_value(cases: dict[str, Case]) -> None:
    found = cases["lithium-hydride"]
    x = walker(found.wave.system)
    logs = found.sign_and_log(np.stack([x, swapped(x, 0, 2)]))[1]
    assert abs(logs[0] - logs[1]) > 1e-3


def test_psi_dies_out_far_away(case: Case) -> None:
    x = np.repeat(walker(case.wave.system)[None], 4, axis=0)
    x[:, 0] = np.array([0.6, 0.0, 0.8]) * np.array([10.0, 20.0, 40.0, 4000.0])[:, None]
    logs = case.sign_and_log(x)[1]
    assert np.all(np.isfinite(logs)) and np.all(np.diff(logs) < 0) and logs[-1] < logs[0] - 100


@pytest.mark.parametrize("name", [name for name in CASES if name != "lithium"])
def test_every_parameter_has_a_gradient_and_a_walker_on_a_nucleus_a_finite_one(
    name: str, cases: dict[str, Case]
) -> None:
    case = cases[name]
    slopes = compiled(jax.grad(case.wave.log, (0, 1)))
    x = walker(case.wave.system)
    for path, leaf in jax.tree_util.tree_leaves_with_path(slopes(case.params, x)[0]):
        assert np.all(np.isfinite(leaf)) and np.any(np.asarray(leaf) != 0), jax.tree_util.keystr(path)
    x[0] = case.wave.system.positions[0]
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes(case.params, x)))


@pytest.mark.parametrize("name", ["lithium-hydride", "lithium-hydride-attention"])
def test_cusps_are_exact_for_any_weights(name: str, cases: dict[str, Case]) -> None:
    found = cases[name]
    x, step = walker(found.wave.system, 5), 1e-3
    direction = np.array([0.48, 0.6, 0.64])
    ends = np.concatenate([np.arange(1, 4) * step, -np.arange(1, 4) * step])[:, None] * direction

    def curve(moves: dict[int, Any]) -> np.ndarray:
        places = np.repeat(x[None], 6, axis=0)
        for electron, rows in moves.items():
            places[:, electron] = rows
        logs = found.sign_and_log(places)[1]
        return (logs[:3] + logs[3:]) / 2  # forth and back: what is odd in the direction is no cusp

    middle = np.array([0.3, -0.2, 0.9])
    assert slope(curve({0: middle + ends / 2, 2: middle - ends / 2}), step) == pytest.approx(0.5, abs=1e-4)
    together = curve({0: middle + ends / 2, 1: middle - ends / 2}) - np.log(np.arange(1, 4))
    assert slope(together, step) == pytest.approx(0.25, abs=1e-4)
    for nucleus, charge in enumerate(found.wave.system.charges):
        assert slope(
            curve({0: np.asarray(found.wave.system.positions[nucleus]) + ends}), step
        ) == pytest.approx(-charge, abs=1e-3)


@pytest.mark.parametrize("name", ["lithium-hydride", "helium-all-up-attention", "boron"])
def test_a_forward_laplacian_is_the_trace_of_the_hessian(name: str, cases: dict[str, Case]) -> None:
    folx: Any = pytest.importorskip("folx", reason="the forward Laplacian needs folx")
    found = (
        made(system_of("B"), dataclasses.replace(FERMINET, layers=1, determinants=1))
        if name == "boron"
        else cases[name]
    )
    x = jnp.asarray(walker(found.wave.system))

    def trace(y: Any) -> Any:
        return jnp.trace(
            jax.hessian(lambda flat: found.wave.log(found.params, flat.reshape(y.shape)))(y.reshape(-1))
        )

    wanted = float(compiled(trace)(x))
    forward = folx.forward_laplacian(lambda y: found.wave.log(found.params, y), disable_jit=True)
    assert float(compiled(lambda y: forward(y).laplacian)(x)) == pytest.approx(wanted, rel=1e-10)


def test_the_local_energy_in_float32_is_near_that_in_float64() -> None:
    small = dataclasses.replace(FERMINET, layers=1, determinants=1)
    attention = dataclasses.replace(PSIFORMER, layers=1, determinants=1)
    for each in (made(system_of("He", spin=2), attention), made(system_of("He"), small)):
        energy = compiled(
            jax.vmap(local_energy(each.wave.log, each.wave.system, method="forward"), (None, 0))
        )
        x = np.stack([walker(each.wave.system, seed) for seed in range(ROWS)])
        narrow = energy(
            jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), each.params), x.astype(np.float32)
        )
        assert narrow.dtype == np.float32 and np.allclose(
            narrow, energy(each.params, x), rtol=1e-3, atol=1e-3
        )


def test_no_function_of_the_walker_has_a_derivative_of_its_own() -> None:
    """A forward Laplacian would take a full Hessian of it."""
    for config in (FERMINET, PSIFORMER):
        wave = wave_function(system_of("LiH"), config)
        params = jax.eval_shape(wave.init, jax.random.key(0))
        jaxpr = jax.make_jaxpr(lambda p, x, wave=wave: wave.log(p, x))(params, walker(wave.system))
        inputs = set(jaxpr.jaxpr.invars[-1:])
        for equation in jaxpr.jaxpr.eqns:
            if inputs & {variable for variable in equation.invars if not hasattr(variable, "val")}:
                assert "custom" not in equation.primitive.name
                inputs |= set(equation.outvars)


@pytest.mark.parametrize("name", ["lithium-hydride", "lithium-hydride-attention"])
def test_float32_is_close_to_float64(name: str, cases: dict[str, Case]) -> None:
    found = cases[name]
    x = np.stack([walker(found.wave.system, seed) for seed in range(ROWS)])
    wide = found.sign_and_log(x)
    narrow = found.sign_and_log(
        x.astype(np.float32), jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), found.params)
    )
    assert narrow[1].dtype == np.float32 and np.allclose(narrow[1], wide[1], atol=1e-4)
    assert np.array_equal(narrow[0], wide[0])


def test_weights_have_the_float_type_of_the_run() -> None:
    wave = wave_function(system_of("He"), FERMINET)
    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(wave.init, jax.random.key(0)))} == {
        np.dtype("float64")
    }
    with jax.enable_x64(False):
        assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(wave.init, jax.random.key(0)))} == {
            np.dtype("float32")
        }


def test_split_weights_are_the_whole_ones_applied_to_all_features_side_by_side() -> None:
    system = system_of("Li")
    params = filled(wave_function(system, FERMINET))["network"]

    def whole_and_inputs(x: Any) -> Any:
        places = geometry(system, x)
        return streams(params, system, places), one_electron(system, places), two_electrons(places)

    found, h, pairs = (np.asarray(part) for part in compiled(whole_and_inputs)(walker(system)))
    for one, two in zip(params["one"], params["two"], strict=True):
        new = np.tanh(pairs @ two["weights"] + two["bias"])
        pairs = pairs + new if new.shape == pairs.shape else new
        means = [np.tile(h[part].mean(0), (3, 1)) for part in (slice(0, 2), slice(2, 3))]
        whole = np.concatenate([h, *means, pairs[:, :2].mean(1), pairs[:, 2:].mean(1)], axis=1)
        order = ("self", "mean_up", "mean_down", "pairs_up", "pairs_down")
        new = np.tanh(whole @ np.concatenate([one[name] for name in order]) + one["bias"])
        h = h + new if new.shape == h.shape else new
    assert np.allclose(found, h, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_sum_of_determinants_is_that_of_numpy(size: int) -> None:
    rng = np.random.default_rng(size)
    first, second = rng.normal(size=(2, 3, size, size))
    sign, log = sum_of_determinants([jnp.asarray(first), jnp.asarray(second)])
    assert float(sign * jnp.exp(log)) == pytest.approx(
        np.sum(np.linalg.det(first) * np.linalg.det(second)), rel=1e-12
    )


def test_determinants_beyond_the_range_of_floats_are_summed() -> None:
    sign, log = sum_of_determinants([1e200 * jnp.eye(5)[None].repeat(2, axis=0)])
    assert float(sign) == 1.0 and float(log) == pytest.approx(1000 * np.log(10) + np.log(2))


@pytest.mark.parametrize("config", [FERMINET, APART], ids=["full", "apart"])
def test_orbitals_give_the_wave_function_back(config: NetConfig) -> None:
    wave = wave_function(system_of("Li"), dataclasses.replace(config, jastrow=False, layers=1))
    params, x = filled(wave), walker(wave.system)
    blocks, (sign, log) = compiled(lambda p, y: (wave.orbitals(p, y), wave.sign_and_log(p, y)))(params, x)
    product = np.prod([np.linalg.det(block) for block in blocks], axis=0)
    assert float(sign * np.exp(log)) == pytest.approx(product.sum(), rel=1e-10)


@pytest.mark.parametrize(("name", "charge"), [("H", 0), ("Li", 2)])
def test_a_network_that_says_nothing_is_an_exact_hydrogen_like_atom(name: str, charge: int) -> None:
    system = system_of(name, charge=charge)
    wave, number = wave_function(system, FERMINET), float(system.charges[0])
    raw = number + np.log(-np.expm1(-number))  # log(1 + e^raw) is the charge
    params = filled(wave)
    params["orbital"]["up"] = {
        "weights": 0 * params["orbital"]["up"]["weights"],
        "bias": np.ones(FERMINET.determinants),
    }
    params["envelope"]["up"] = {"pi": np.ones((1, 2, 1)), "sigma": np.full((1, 2, 1), raw)}
    params["cusp"] = np.full(1, raw)
    energy = compiled(jax.vmap(local_energy(wave.log, system, method="hessian"), (None, 0)))
    x = np.random.default_rng(0).normal(size=(32, 1, 3))
    assert np.allclose(energy(params, x), -(number**2) / 2, rtol=1e-10)


@pytest.mark.parametrize("name", ["H", "He", "B"])
def test_independent_electrons_have_one_energy_everywhere(name: str) -> None:
    wave = hydrogenic(system_of(name))
    energy = compiled(jax.vmap(local_energy(wave.log, wave.system, method="hessian"), (None, 0)))
    x = np.random.default_rng(0).normal(size=(8, wave.system.electrons, 3))
    apart = np.linalg.norm(x[:, :, None] - x[:, None], axis=-1)
    once = np.triu_indices(wave.system.electrons, k=1)
    repulsion = (1 / apart[:, once[0], once[1]]).sum(-1)
    found = np.asarray(energy(wave.init(jax.random.key(0)), x)) - repulsion
    assert np.allclose(found, independent_energy(wave.system), rtol=1e-8)


def test_the_helium_like_product_has_the_energy_of_the_books() -> None:
    # <E> = a^2 - 2 Z a + 5 a / 8, by drawing from the product itself.
    wave, a, rng = hydrogenic(system_of("He")), 1.6875, np.random.default_rng(1)
    direction = rng.normal(size=(40_000, 2, 3))
    x = (
        direction
        / np.linalg.norm(direction, axis=-1, keepdims=True)
        * rng.gamma(3, 1 / (2 * a), size=(40_000, 2, 1))
    )
    energies = np.asarray(compiled(jax.vmap(lambda y: _energy_of_a_product(wave.system, a, y)))(x))
    assert energies.mean() == pytest.approx(a**2 - 4 * a + 5 * a / 8, abs=4 * energies.std() / 200)
    log = compiled(jax.vmap(wave.log, (None, 0)))({"a": jnp.asarray(a)}, x[:16])
    assert np.allclose(log, -a * np.linalg.norm(x[:16], axis=-1).sum(-1))


def _energy_of_a_product(system: System, a: float, x: Any) -> Any:
    return jnp.sum(a / jnp.linalg.norm(x, axis=-1) - a**2 / 2) + potential(system, x)
