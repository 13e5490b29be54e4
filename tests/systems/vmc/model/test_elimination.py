"""Sign, logarithm and inverse of matrices: against LAPACK's, their derivatives, and programs that wait for no
thread.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.systems.vmc.model.determinants import sum_of_determinants
from pinchpoint.systems.vmc.model.elimination import eliminate, factor, inverse_and_logdet, sign_and_logdet

WAYS = {"eliminated": jax.jit(eliminate), "factored": jax.jit(factor)}


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def matrices(kind: str, size: int) -> np.ndarray:
    """(6, size, size)."""
    rng = np.random.default_rng(size)
    made = rng.normal(size=(6, size, size))
    if kind == "near singular" and size > 1:  # the last row is the mean of the others but for 1e-3
        made[:, -1] = made[:, :-1].mean(axis=1) + 1e-3 * made[:, -1]
    if kind == "permutation":
        made = np.stack([np.eye(size)[rng.permutation(size)] for _ in made])
    if kind == "badly scaled":
        made *= 10 ** rng.uniform(-3, 3, size=(6, size, 1)) * 10 ** rng.uniform(-3, 3, size=(6, 1, size))
    if kind == "zeros on the diagonal" and size > 1:
        made *= 1 - np.eye(size)
    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 4, 10])
def test_sign_logarithm_and_inverse_are_those_of_lapack_to_rounding(
    way: str, precision: Any, size: int
) -> None:
    for kind in ("random", "near singular", "permutation", "badly scaled", "zeros on the diagonal"):
        given = matrices(kind, size).astype(precision)
        truth = given.astype(np.float64)
        sign, log, inverse = (np.asarray(value) for value in WAYS[way](given))
        wanted_sign, wanted_log = np.linalg.slogdet(truth)
        wanted = np.linalg.inv(truth)
        reach = 8 * size * np.finfo(precision).eps * np.linalg.cond(truth)
        assert (sign.dtype, log.dtype, inverse.dtype) == (precision,) * 3
        assert np.array_equal(sign, wanted_sign), kind
        assert np.all(np.abs(log - wanted_log) < reach), kind
        off = np.linalg.norm(inverse - wanted, axis=(1, 2)) / np.linalg.norm(wanted, axis=(1, 2))
        assert np.all(off < reach), kind


@pytest.mark.parametrize("way", WAYS)
def test_columns_in_other_units_change_the_digits_of_nothing(way: str) -> None:
    rng, given = np.random.default_rng(1), matrices("random", 6).astype(np.float32)
    columns = 2.0 ** rng.integers(-30, 30, size=6)  # powers of two round nothing
    all_rows = 2.0**-20
    plain, scaled = WAYS[way](given), WAYS[way]((given * columns * all_rows).astype(np.float32))
    assert np.array_equal(plain[0], scaled[0])
    assert np.allclose(plain[1] + np.log(columns).sum() + 6 * np.log(all_rows), scaled[1], rtol=1e-5)
    assert np.allclose(plain[2], scaled[2] * columns[:, None] * all_rows, rtol=1e-4)


def test_a_batch_of_any_axes_and_a_map_over_them_are_the_same() -> None:
    given = jnp.asarray(matrices("random", 5).reshape(2, 3, 5, 5))
    whole, mapped = inverse_and_logdet(given), jax.vmap(jax.vmap(inverse_and_logdet))(given)
    alone = sign_and_logdet(given)
    for a, b in zip(whole, mapped, strict=True):
        assert np.allclose(a, b, rtol=1e-13)
    for a, b in zip(whole[1:], alone, strict=True):
        assert np.allclose(a, b, rtol=1e-13)


def test_derivatives_of_first_and_second_order_are_those_of_jax() -> None:
    rng = np.random.default_rng(2)
    at, first, second = (jnp.asarray(rng.normal(size=(2, 4, 4))) for _ in range(3))

    def ours(a: Any) -> Any:
        inverse, _, log = inverse_and_logdet(a)
        return jnp.sum(jnp.sin(inverse)) + jnp.sum(jnp.cos(log)) + jnp.sum(jnp.sin(sign_and_logdet(a)[1]))

    def theirs(a: Any) -> Any:
        log = jnp.linalg.slogdet(a)[1]
        return jnp.sum(jnp.sin(jnp.linalg.inv(a))) + jnp.sum(jnp.cos(log)) + jnp.sum(jnp.sin(log))

    def derivatives(of: Any) -> Any:
        slope = jax.grad(of)

        def forward(a: Any) -> Any:
            return jax.jvp(of, (a,), (first,))[1]

        return (
            slope(at),
            jax.jvp(slope, (at,), (first,))[1],
            jax.grad(forward)(at),
            jax.jvp(forward, (at,), (second,))[1],
        )

    for a, b in zip(
        jax.jit(derivatives, static_argnums=0)(ours),
        jax.jit(derivatives, static_argnums=0)(theirs),
        strict=True,
    ):
        assert np.allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", WAYS)
def test_a_singular_matrix_has_the_logarithm_of_zero_and_one_that_is_no_number_none(way: str) -> None:
    given = np.stack(
        [np.zeros((4, 4)), np.ones((4, 4)), np.diag([1.0, 0, 2, 3]), np.eye(4), np.full((4, 4), np.nan)]
    )
    sign, log, inverse = WAYS[way](given)
    assert np.array_equal(sign[:4], [0, 0, 0, 1]) and np.array_equal(log[:4], [-np.inf] * 3 + [0])
    assert np.all(np.isfinite(inverse[:4])) and np.isnan(log[4])


def test_a_singular_matrix_beside_others_adds_nothing_to_the_sum_nor_to_its_slope() -> None:
    given = jnp.stack([jnp.diag(jnp.asarray([1.0, 0, 0, 3, 1])), 2 * jnp.eye(5)])
    value, slope = jax.value_and_grad(lambda a: sum_of_determinants([a])[1])(given)
    assert float(value) == pytest.approx(5 * np.log(2))
    assert np.array_equal(slope, np.stack([np.zeros((5, 5)), np.eye(5) / 2]))
    sign, alone = sum_of_determinants([given[:1]])
    assert float(sign) == 0 and float(alone) == -np.inf


def test_a_program_has_one_factorisation_on_a_gpu_and_on_a_cpu_none_of_lapack() -> None:
    folx = pytest.importorskip("folx", reason="forward Laplacians are folx's")
    at = jnp.asarray(np.random.default_rng(3).normal(size=(2, 3, 5, 5)))

    def laplacian(x: Any) -> Any:
        return jax.vmap(folx.forward_laplacian(lambda a: sum_of_determinants([jnp.sin(a)])[1]))(x).laplacian

    def slope(x: Any) -> Any:
        return jax.vmap(jax.grad(lambda a: sum_of_determinants([jnp.sin(a)])[1]))(x)

    for of in (laplacian, slope):
        traced = jax.jit(of).trace(at)
        assert "custom_call" not in traced.lower().as_text()
        there = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert there.count("getrf") == 1


STEPS = """
import jax
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.settings import Settings
from pinchpoint.systems.vmc.optimization.training_step import begin, make_step
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model.wavefunction import wave_function

config = NetConfig(kind="ferminet", one=4, two=2, layers=1, determinants=16)
wave = wave_function(system_of("B"), config)
settings = Settings(walkers=64, moves=2, optimizer="adam", burn=0, method="forward")
carry = begin(wave, settings)
step = make_step(wave, settings).lower(carry).compile({"xla_backend_optimization_level": 0})
print("lapack" in step.as_text())
for _ in range(6):
    carry, stats = step(carry)
    print(bool(stats.finite))
"""


def test_steps_with_factored_determinants_end_on_two_threads() -> None:
    # In a process of its own: a deadlock would keep the tests from ending as well.
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False"] + ["True"] * 6
