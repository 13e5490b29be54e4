"""Gradients against closed forms, Adam against optax, SPRING against a dense solve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from pinchpoint.workloads.vmc.chunks import split
from pinchpoint.workloads.vmc.hamiltonian import local_energies
from pinchpoint.workloads.vmc.optimizers import (
    adam_change,
    energy_gradient,
    optimizer_state,
    scores,
    solved,
    spring_direction,
    updated,
)
from pinchpoint.workloads.vmc.settings import Settings

from .closed import helium, hydrogen, hydrogen_walkers


@pytest.fixture
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def spring_reference(rows: np.ndarray, energies: np.ndarray, previous: np.ndarray, momentum: float, damping: float) -> np.ndarray:
    """The least squares SPRING solves, in the space of the parameters: |O d - e|^2 + damping |d - momentum previous|^2."""
    rows = (rows - rows.mean(axis=0)) / np.sqrt(len(rows))
    wanted = (energies - energies.mean()) / np.sqrt(len(rows))
    left = rows.T @ rows + damping * np.eye(rows.shape[1])
    return np.linalg.solve(left, rows.T @ wanted + damping * momentum * previous)


def step_of(wave: Any, settings: Settings, x: Any, energies: Any) -> Any:
    return jax.jit(lambda params, state, step: updated(wave.log, params, state, x, energies, step, settings))


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("a", [0.7, 1.0])
def test_the_gradient_of_hydrogen_is_a_minus_one(a: float) -> None:
    wave, params = hydrogen(), {"a": jnp.asarray(a)}
    x = jnp.asarray(hydrogen_walkers(50_000, a, 1))

    @jax.jit
    def gradient_of(params: Any, x: Any) -> Any:
        energies = local_energies(wave.log, wave.system, method="hessian")(params, x)
        return energy_gradient(wave.log, params, x, energies)["a"]

    gradient = gradient_of(params, x)
    # 2 cov(E, -r) = 2 (a - 1)(1 - <1/r><r>); the spread of one walker's term is below 3 |a - 1|.
    assert float(gradient) == pytest.approx(a - 1, abs=12 * abs(a - 1) / np.sqrt(len(x)) + 1e-9)


@pytest.mark.usefixtures("_float64")
def test_the_estimator_is_two_covariances_and_never_looks_into_the_energy() -> None:
    wave = helium()
    params = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (24, 2, 3))
    energies = jax.random.normal(jax.random.key(1), (24,))
    found, in_chunks = jax.jit(lambda: [energy_gradient(wave.log, params, x, energies, chunk=chunk) for chunk in (None, 8)])()
    one = jax.jit(jax.grad(wave.log))
    for name, value in params.items():
        each = np.stack([np.asarray(one(params, walker)[name]) for walker in x])
        weights = np.asarray(energies - energies.mean())
        wanted = 2 * np.mean(weights.reshape(-1, *[1] * value.ndim) * each, axis=0)
        assert np.allclose(found[name], wanted, rtol=1e-10, atol=1e-12)
        assert np.allclose(in_chunks[name], wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("_float64")
def test_adam_is_that_of_optax() -> None:
    params = {"w": jnp.linspace(-1, 1, 7), "b": jnp.ones((2, 2))}
    theirs = optax.scale_by_adam()
    state, ours = theirs.init(params), optimizer_state(params, Settings(optimizer="adam"))
    mean, square = ours.mean, ours.square
    for step in range(5):
        gradient = jax.tree_util.tree_map(lambda p, s=step: jnp.sin(p + s), params)
        wanted, state = theirs.update(gradient, state)
        found, mean, square = adam_change(gradient, mean, square, step)
        assert all(np.allclose(found[name], wanted[name], rtol=1e-9) for name in params)


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("shape", [(20, 37), (40, 9)])
def test_spring_is_the_least_squares_solution_in_the_space_of_the_parameters(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    rows, energies, previous = rng.normal(size=shape), rng.normal(size=shape[0]), rng.normal(size=shape[1])
    found = spring_direction(jnp.asarray(rows), jnp.asarray(energies), jnp.asarray(previous), momentum=0.9, damping=1e-3)
    assert np.allclose(found, spring_reference(rows, energies, previous, 0.9, 1e-3), rtol=1e-7, atol=1e-9)


def test_spring_stays_right_in_float32_where_its_matrix_is_nearly_singular() -> None:
    rng = np.random.default_rng(0)
    # Scores of a network: a few large directions, a long tail of small ones.
    rows = (rng.normal(size=(64, 300)) * np.geomspace(10, 1e-3, 300)).astype(np.float32)
    energies, previous = rng.normal(size=64), np.zeros(300)
    wanted = spring_reference(rows.astype(np.float64), energies, previous, 0.9, 1e-3)
    found = spring_direction(
        jnp.asarray(rows), jnp.asarray(energies, jnp.float32), jnp.zeros(300, jnp.float32), momentum=0.9, damping=1e-3
    )
    assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted)


def test_a_matrix_that_rounding_made_negative_is_solved_all_the_same() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(256, 3)).astype(np.float32) * 100
    matrix = jnp.asarray(rows @ rows.T + 1e-6 * np.eye(256, dtype=np.float32))
    wanted = jnp.asarray(rows @ np.ones(3, np.float32))
    found = solved(matrix, wanted)
    assert np.all(np.isfinite(found))
    assert np.linalg.norm(matrix @ found - wanted) < 1e-2 * np.linalg.norm(wanted)


@pytest.mark.usefixtures("_float64")
def test_a_step_of_spring_goes_against_its_direction_no_farther_than_the_cap() -> None:
    wave = helium()
    params = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (24, 2, 3))
    energies = jax.random.normal(jax.random.key(1), (24,))
    rows = np.asarray(jax.jit(lambda: scores(wave.log, params, x))())
    wanted = spring_reference(rows, np.asarray(energies), np.zeros(rows.shape[1]), 0.95, 1e-3)
    for cap, chunk in ((1e9, None), (1e-6, 8)):
        settings = Settings(walkers=24, optimizer="spring", norm_cap=cap, chunk=chunk)
        state = optimizer_state(params, settings)
        moved, state, norm = step_of(wave, settings, x, energies)(params, state, 0)
        change = np.asarray(ravel_pytree(moved)[0] - ravel_pytree(params)[0])
        rate = min(settings.spring_rate, np.sqrt(cap) / np.linalg.norm(wanted))
        assert np.allclose(change, -rate * wanted, rtol=1e-6, atol=1e-12)
        assert float(norm) == pytest.approx(np.linalg.norm(change))
        assert np.allclose(state.direction, wanted, rtol=1e-6, atol=1e-10)


@pytest.mark.usefixtures("_float64")
def test_scores_in_chunks_are_rows_in_the_order_of_the_chunks() -> None:
    wave = helium()
    params: Any = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (12, 2, 3))
    whole, in_chunks = jax.jit(lambda: [scores(wave.log, params, x, chunk=chunk) for chunk in (None, 4)])()
    assert np.allclose(in_chunks, split(whole, 4).reshape(12, -1))


@pytest.mark.usefixtures("_float64")
def test_the_warm_start_is_adam_and_what_follows_is_spring() -> None:
    wave = helium()
    params: Any = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (24, 2, 3))
    energies = jax.random.normal(jax.random.key(1), (24,))
    both = Settings(walkers=24, optimizer="adam+spring", adam_steps=3)
    step = step_of(wave, both, x, energies)
    for optimizer, at in (("adam", 2), ("spring", 6)):
        alone = Settings(walkers=24, optimizer=optimizer)
        wanted, _, _ = step_of(wave, alone, x, energies)(params, optimizer_state(params, alone), at)
        found, after, _ = step(params, optimizer_state(params, both), at if optimizer == "adam" else at + 3)
        assert all(np.allclose(found[name], wanted[name], rtol=1e-9, atol=1e-12) for name in params)
        untouched = np.asarray(after.direction) if optimizer == "adam" else np.asarray(after.mean["in"])
        assert np.all(untouched == 0)
