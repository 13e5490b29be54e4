"""Sums of determinants: the rule for a forward Laplacian, and what must stay finite where a determinant is
zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.systems.vmc.model.determinants import sum_of_determinants


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def compiled(function: Any) -> Any:
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@pytest.mark.parametrize("sizes", [(5,), (6, 5), (5, 2), (3, 2)])
def test_the_laplacian_of_a_sum_of_determinants_is_the_trace_of_its_hessian(sizes: tuple[int, ...]) -> None:
    folx: Any = pytest.importorskip("folx", reason="the forward Laplacian needs folx")
    from folx.wrapped_functions import is_registered

    rng = np.random.default_rng(0)
    still, moving = (
        [jnp.asarray(rng.normal(size=(*first, 3, size, size))) for size in sizes] for first in ((), (6,))
    )

    def log(x: Any) -> Any:
        return sum_of_determinants(
            [
                a + jnp.einsum("c,cdij->dij", jnp.sin(2 * x) + x**2, b)
                for a, b in zip(still, moving, strict=True)
            ]
        )[1]

    x = jnp.asarray(rng.normal(size=6) / 4)
    jaxpr = str(jax.make_jaxpr(log)(x))
    assert ("pinchpoint_sum" in jaxpr) == (min(sizes) > 4) and ("pinchpoint_factored" in jaxpr) == (
        max(sizes) > 4
    )
    found: Any = compiled(folx.forward_laplacian(log, disable_jit=True))(x)
    assert is_registered("pinchpoint_sum_of_determinants") and is_registered(
        "pinchpoint_factored_determinants"
    )
    value, slope, curve = compiled(lambda x: (log(x), jax.grad(log)(x), jnp.trace(jax.hessian(log)(x))))(x)
    assert float(found.x) == pytest.approx(float(value), rel=1e-12)
    assert np.allclose(found.jacobian.dense_array, slope, rtol=1e-10)
    assert float(found.laplacian) == pytest.approx(float(curve), rel=1e-10)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_small_determinants_of_zero_leave_the_derivatives_of_the_sum_finite(size: int) -> None:
    folx: Any = pytest.importorskip("folx", reason="the forward Laplacian needs folx")
    blocks = jnp.stack([jnp.zeros((size, size)), jnp.eye(size)])
    slope = jax.grad(lambda b: sum_of_determinants([b])[1])(blocks)
    assert np.all(np.isfinite(slope)) and np.allclose(slope[1], np.eye(size))
    found: Any = folx.forward_laplacian(lambda b: sum_of_determinants([b])[1])(blocks)
    # log(det a + det b) at a = 0, b = 1: only b's pairs of entries bend it, by -1 each where they are on the
    # diagonal.
    wanted = -float(size) - (1.0 if size == 1 else 0.0)
    assert float(found.laplacian) == pytest.approx(wanted)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_determinants_that_are_written_out_are_those_of_lapack_and_so_are_their_slopes(size: int) -> None:
    blocks = np.random.default_rng(size).normal(size=(7, size, size))
    wanted = np.linalg.det(blocks).sum()
    sign, log = sum_of_determinants([jnp.asarray(blocks)])
    assert float(sign * jnp.exp(log)) == pytest.approx(wanted, rel=1e-12)
    slope = jax.grad(lambda b: sum_of_determinants([b])[1])(jnp.asarray(blocks))
    # d det A / d A = det A times the inverse, turned over.
    each = np.linalg.det(blocks)[:, None, None] * np.swapaxes(np.linalg.inv(blocks), 1, 2)
    assert np.allclose(slope, each / wanted, rtol=1e-9, atol=1e-12)
