"""The orbital workload.

Physics against closed forms, variants against each other, sizes against hand counts.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache, cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.backends.jax.analysis import observe
from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case, Mode, Probe
from pinchpoint.forecasting.cards import card
from pinchpoint.workloads.orbital import WORKLOAD, model

LAPLACIANS = (model.laplacian_by_hessian, model.laplacian_by_loop)
VARIANTS = [v.name for v in WORKLOAD.variants]


@dataclass(frozen=True)
class Shared:
    """A case of 40 walkers, in chunks of 16 where it is chunked; its programs are compiled once."""

    case: Case

    @cached_property
    def probe(self) -> Probe:
        assert self.case.probe is not None
        return self.case.probe()


@pytest.fixture(scope="module")
def shared():
    @cache
    def build(mode: Mode, variant: str) -> Shared:
        return Shared(WORKLOAD.case(40, device="cpu", mode=mode, variant=variant, seed=4, chunk=16))

    return build


@pytest.mark.parametrize("laplacian", LAPLACIANS)
def test_the_laplacian_of_a_gaussian_matches_the_closed_form(laplacian):
    # f = exp(-|r|^2 / 2): grad f = -r f, lap f = (|r|^2 - D) f
    r = jnp.array([0.3, -0.4, 1.2, 0.1, 0.0, -0.7])
    value = float(jnp.exp(-0.5 * jnp.sum(r**2)))
    lap, gradient = jax.jit(lambda r: laplacian(lambda x: jnp.exp(-0.5 * jnp.sum(x**2)), r))(r)
    assert float(lap) == pytest.approx((float(jnp.sum(r**2)) - 6) * value, rel=1e-5)
    assert np.allclose(gradient, -r * value, rtol=1e-5)


@pytest.mark.parametrize("laplacian", LAPLACIANS)
def test_the_trap_alone_has_its_exact_ground_state_energy(laplacian):
    # A zero MLP leaves psi = exp(-|r|^2 / 2), whose local energy is D / 2 everywhere.
    params = {name: jnp.zeros_like(array) for name, array in model.init(0).items()}
    energy = jax.jit(jax.vmap(lambda r: model.local_energy(params, r, laplacian=laplacian, repulsion=0.0)))
    assert np.allclose(energy(model.sample(5, seed=3)), 3 * model.PARTICLES / 2, rtol=1e-5)


def test_the_repulsion_counts_every_pair_once():
    corners = np.array([[0, 0, 0], [3, 0, 0], [0, 4, 0]], np.float32).ravel()
    pairs = sum(1 / np.sqrt(d**2 + model.SOFTENING**2) for d in (3, 4, 5))
    assert float(model.potential(corners)) == pytest.approx(0.5 * 25 + pairs, rel=1e-6)


def test_the_energy_gradient_is_that_of_the_mean_energy_over_the_walkers_density():
    # d<E> = 2 <(E - <E>) d log|psi|>: checked by reweighting the same walkers to a nearby wave function,
    # with the energies of the old one, by central differences.
    params = {name: jnp.asarray(array) for name, array in model.init(1).items()}
    walkers = jnp.asarray(model.sample(64, seed=1))
    energy = jax.jit(model.energies_at_once(model.laplacian_by_loop))(params, walkers)
    weights = 2 * (energy - energy.mean()) / 64
    by_params, _ = jax.jit(model.gradient_at_once)(params, walkers, weights)

    @jax.jit
    def reweighted(step):
        moved = params | {"w2": params["w2"].at[3, 0].add(step)}
        log = jax.vmap(lambda r: model.log_psi(moved, r) - model.log_psi(params, r))(walkers)
        share = jnp.exp(2 * log)
        return jnp.sum(share * energy) / jnp.sum(share)

    slope = float(reweighted(1e-2) - reweighted(-1e-2)) / 2e-2
    assert float(by_params["w2"][3, 0]) == pytest.approx(slope, rel=2e-2)


@pytest.mark.slow
def test_every_variant_gives_the_same_energies_and_gradients(shared):
    base = shared("train", "hessian").probe
    for variant in VARIANTS[1:]:
        other = shared("train", variant).probe
        assert set(other.outputs) == set(base.outputs)
        assert set(other.gradients) == set(base.gradients)
        for name in base.outputs:
            assert np.allclose(other.outputs[name], base.outputs[name], rtol=1e-4)
        for name in base.gradients:
            error = np.linalg.norm(other.gradients[name] - base.gradients[name]) / np.linalg.norm(
                base.gradients[name]
            )
            assert error < WORKLOAD.tolerance.gradients, name


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_inference_gives_the_energies_of_training(shared, variant):
    case, train = shared("infer", variant).case, shared("train", variant)
    assert case.processed == train.case.processed == 40
    first, second = (np.asarray(case.step(*case.args)) for _ in range(2))
    assert np.array_equal(first, second)
    assert np.allclose(first, train.probe.outputs["energy"], rtol=1e-4)


def test_a_probe_of_inference_holds_the_energies_alone(shared):
    probe = shared("infer", "loop").probe
    assert np.allclose(probe.outputs["energy"], shared("train", "loop").probe.outputs["energy"], rtol=1e-4)
    assert set(probe.outputs) == {"energy"} and not probe.gradients


def test_the_probe_covers_every_weight_and_the_walkers(shared):
    probe = shared("train", "loop").probe
    assert set(probe.gradients) == {f"params.{name}" for name in model.init(0)} | {"walkers"}
    assert probe.outputs["energy"].shape == (40,)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_a_ragged_last_chunk_is_not_dropped(chunk):
    walkers = jnp.asarray(model.sample(16, seed=2))
    total, rows = model.over_chunks(
        lambda done, part: (done + part.sum(), part * 2), 0.0, walkers, chunk=min(chunk, 16)
    )
    assert np.array_equal(rows, walkers * 2)
    assert float(total) == pytest.approx(float(walkers.sum()), abs=1e-4)


def test_adam_moves_by_its_rate_at_the_first_step():
    params = {"w": jnp.ones(3)}
    zero = {"w": jnp.zeros(3)}
    state = {"count": jnp.zeros(()), "mean": zero, "square": zero}
    moved, state = model.adam(params, state, {"w": jnp.array([1.0, -2.0, 0.5])})
    assert np.allclose(moved["w"], 1 - model.RATE * np.array([1, -1, 1]), rtol=1e-5)
    assert float(state["count"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_step_can_be_repeated_and_is_adam_along_the_probed_gradient(shared, variant):
    case, probe = shared("train", variant).case, shared("train", variant).probe
    params, state, _ = case.args
    gradient = {name: probe.gradients[f"params.{name}"] for name in params}
    want, _ = model.adam(params, state, gradient)
    first, second = (case.step(*case.args) for _ in range(2))
    leaves = (jax.tree.leaves(result) for result in (first, second))
    assert all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
    got, _, energy = first
    assert float(energy) == pytest.approx(probe.outputs["energy"].mean(), rel=1e-5)
    # The length of the first step is the learning rate, whatever the gradient's, so only signs matter; tiny
    # gradients may be rounded to the other sign.
    for name in params:
        moved = np.asarray(got[name]) - np.asarray(params[name])
        assert np.mean(np.isclose(moved, np.asarray(want[name]) - np.asarray(params[name]), atol=1e-5)) > 0.99


def test_the_same_seed_gives_the_same_walkers_and_another_seed_others():
    a, b, c = (WORKLOAD.case(8, device="cpu", mode="infer", seed=seed).args[1] for seed in (0, 0, 1))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.skipif(any(d.platform == "gpu" for d in jax.devices()), reason="the asked device is here")
@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_card_that_is_not_available_is_predicted_from_shapes(mode, variant):
    case = WORKLOAD.case(10_000_000, device="cuda", mode=mode, variant=variant)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(case.args))
    assert case.processed == 10_000_000
    assert case.probe is None
    found = observe(case.step, case.args, card=card("h200"))
    assert found.mode == mode
    assert found.breakdown["inputs"] == pytest.approx(10_000_000 * 12 * 4, abs=512)


@pytest.mark.slow
def test_the_hessian_needs_the_most_memory_and_chunks_the_least():
    def peak(variant, size):
        case = WORKLOAD.case(size, device="cuda", mode="train", variant=variant)
        return observe(case.step, case.args, card=card("h200")).peak_bytes

    slopes = {v: (peak(v, 400_000) - peak(v, 200_000)) / 200_000 for v in VARIANTS}
    one = 12 * model.HIDDEN[0] * 4  # one array of a tangent per coordinate and hidden unit
    assert slopes["hessian"] > 2 * one
    assert slopes["loop"] < one + 8 * model.HIDDEN[0] * 4
    # Chunked: a walker, its energy and its weight; little else may grow.
    assert 12 * 4 + 3.9 <= slopes["chunked"] <= 12 * 4 + 5 * 4


@pytest.mark.parametrize("chunk", [0, -3])
def test_a_chunk_of_zero_walkers_is_refused(chunk):
    with pytest.raises(BadInput, match="chunk"):
        WORKLOAD.case(10, device="cpu", variant="chunked", chunk=chunk)


def test_listing_the_workload_imports_no_jax():
    code = "import sys, pinchpoint.workloads.orbital; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "src"})
