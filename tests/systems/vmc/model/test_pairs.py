"""The stream of pairs: its rule for a forward Laplacian against second derivatives of the plain function."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.systems.vmc.model.pairs import pair_means, spin_means

compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # fast to slower code


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def layers(features: int, width: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"weights": rng.normal(size=(rows, width)) / 2, "bias": rng.normal(size=width)}
        for rows in (features, width, width)
    ]


@pytest.mark.parametrize(("up", "electrons", "width"), [(3, 5, 3), (3, 6, 4), (5, 5, 4)])
def test_the_rule_of_the_pairs_gives_all_first_and_second_derivatives(
    up: int, electrons: int, width: int
) -> None:
    folx: Any = pytest.importorskip("folx", reason="the forward Laplacian needs folx")
    from folx.wrapped_functions import is_registered

    net, mix = layers(3, width), np.random.default_rng(1).normal(size=(7, electrons, 3))

    def means(x: Any) -> Any:
        # Of no plain coordinates: the rule must hold whatever the features depend on, and however.
        places = jnp.einsum("c,cik->ik", jnp.sin(x) + x, mix)
        apart = places[:, None] - places
        return jnp.stack(pair_means(net, up, apart * jnp.exp(-jnp.sum(apart**2, axis=-1, keepdims=True) / 4)))

    x = jnp.asarray(np.random.default_rng(2).normal(size=7) / 3)
    assert f"pinchpoint_pair_means_of_{up}_up" in str(jax.make_jaxpr(means)(x))
    assert is_registered(f"pinchpoint_pair_means_of_{up}_up")
    found: Any = compiled(folx.forward_laplacian(means, disable_jit=True))(x)
    value, slopes, curves = compiled(lambda x: (means(x), jax.jacfwd(means)(x), jax.hessian(means)(x)))(x)
    assert found.x.shape == (3, electrons, width * (1 if up == electrons else 2))
    assert np.allclose(found.x, value, rtol=1e-12)
    assert np.allclose(jnp.moveaxis(found.jacobian.dense_array, 0, -1), slopes, atol=1e-12)
    assert np.allclose(found.laplacian, jnp.trace(curves, axis1=-2, axis2=-1), atol=1e-11)


def test_few_electrons_take_no_rule() -> None:
    made = jax.make_jaxpr(lambda y: pair_means(layers(3, 5), 1, y))(jnp.ones((2, 2, 3)))
    assert "pinchpoint_pair_means" not in str(made)


@pytest.mark.parametrize("up", [0, 1, 2, 4])
def test_means_over_spins_lie_side_by_side_and_a_missing_spin_has_none(up: int) -> None:
    rows = np.random.default_rng(0).normal(size=(2, 4, 3))
    wanted = np.concatenate([part.mean(1) for part in (rows[:, :up], rows[:, up:]) if part.shape[1]], axis=1)
    assert np.allclose(spin_means(jnp.asarray(rows), up), wanted)
