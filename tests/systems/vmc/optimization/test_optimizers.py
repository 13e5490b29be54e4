"""Gradients against closed forms, Adam against optax, a step of each optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from tests.systems.vmc.closed import helium, hydrogen, hydrogen_walkers
from tests.systems.vmc.dense import spring_reference

from pinchpoint.systems.vmc.model.hamiltonian import local_energies
from pinchpoint.systems.vmc.optimization.optimizers import (
    adam_change,
    energy_gradient,
    optimizer_state,
    update,
)
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings


@pytest.fixture
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def step_of(wave: Any, settings: Settings, x: Any, energies: Any, stage: OptimizerStage) -> Any:
    return jax.jit(
        lambda params, state, step: update(wave.log, params, state, x, energies, step, settings, stage=stage)
    )


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("a", [0.7, 1.0])
def test_the_gradient_of_hydrogen_is_a_minus_one(a: float) -> None:
    wave, params = hydrogen(), {"a": jnp.asarray(a)}
    x = jnp.asarray(hydrogen_walkers(50_000, a, 1))

    @jax.jit
    def gradient_of(params: Any, x: Any) -> Any:
        energies = local_energies(wave.log, wave.system, method="hessian")(params, x)
        return energy_gradient(wave.log, params, x, energies)[0]

    gradient = gradient_of(params, x)
    # 2 cov(E, -r) = 2 (a - 1)(1 - <1/r><r>); the spread of one walker's term is below 3 |a - 1|.
    assert float(gradient) == pytest.approx(a - 1, abs=12 * abs(a - 1) / np.sqrt(len(x)) + 1e-9)


@pytest.mark.usefixtures("_float64")
def test_the_estimator_is_two_covariances_and_never_looks_into_the_energy() -> None:
    wave = helium()
    params = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (24, 2, 3))
    energies = jax.random.normal(jax.random.key(1), (24,))
    found, in_chunks = jax.jit(
        lambda: [energy_gradient(wave.log, params, x, energies, chunk=chunk) for chunk in (None, 8)]
    )()
    one = jax.jit(jax.grad(wave.log))
    each = np.stack([np.asarray(ravel_pytree(one(params, walker))[0]) for walker in x])
    wanted = 2 * np.mean(np.asarray(energies - energies.mean())[:, None] * each, axis=0)
    assert np.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    assert np.allclose(in_chunks, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("_float64")
def test_adam_is_that_of_optax() -> None:
    optax = pytest.importorskip("optax", reason="the reference Adam is optax's")
    params = {"w": jnp.linspace(-1, 1, 7), "b": jnp.ones((2, 2))}
    theirs = optax.scale_by_adam()
    state, ours = theirs.init(params), optimizer_state(params, Settings(optimizer="adam"))
    mean, square = ours.mean, ours.square
    for step in range(5):
        gradient = jax.tree_util.tree_map(lambda p, s=step: jnp.sin(p + s), params)
        wanted, state = theirs.update(gradient, state)
        found, mean, square = adam_change(ravel_pytree(gradient)[0], mean, square, step)
        assert np.allclose(found, ravel_pytree(wanted)[0], rtol=1e-9)


@pytest.mark.usefixtures("_float64")
def test_a_step_of_spring_goes_against_its_direction_no_farther_than_the_cap() -> None:
    wave = helium()
    params = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (24, 2, 3))
    energies = jax.random.normal(jax.random.key(1), (24,))
    each = jax.jit(jax.vmap(lambda walker: ravel_pytree(jax.grad(wave.log)(params, walker))[0]))
    wanted = spring_reference(np.asarray(each(x)), np.asarray(energies), np.zeros(14), 0.95, 1e-3)
    for cap, chunk in ((1e9, None), (1e-6, 8)):
        settings = Settings(walkers=24, optimizer="spring", norm_cap=cap, chunk=chunk)
        state = optimizer_state(params, settings)
        change, state = step_of(wave, settings, x, energies, "spring")(params, state, 0)
        rate = min(settings.spring_rate, np.sqrt(cap) / np.linalg.norm(wanted))
        assert np.allclose(change, -rate * wanted, rtol=1e-6, atol=1e-12)
        assert np.allclose(state.direction, wanted, rtol=1e-6, atol=1e-10)


@pytest.mark.usefixtures("_float64")
def test_the_warm_start_is_adam_and_what_follows_is_spring() -> None:
    wave = helium()
    params: Any = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (24, 2, 3))
    energies = jax.random.normal(jax.random.key(1), (24,))
    both = Settings(walkers=24, optimizer="adam+spring", adam_steps=3)
    stages: tuple[tuple[OptimizerStage, int], ...] = (("adam", 2), ("spring", 6))
    for stage, at in stages:
        alone = Settings(walkers=24, optimizer=stage)
        wanted, _ = step_of(wave, alone, x, energies, stage)(params, optimizer_state(params, alone), at)
        found, after = step_of(wave, both, x, energies, stage)(
            params, optimizer_state(params, both), at if stage == "adam" else at + 3
        )
        assert np.allclose(found, wanted, rtol=1e-9, atol=1e-12)
        assert np.all(np.asarray(after.direction if stage == "adam" else after.mean) == 0)
