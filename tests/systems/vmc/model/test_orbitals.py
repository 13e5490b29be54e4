"""Orbitals and the sum of their determinants: the rule for a forward Laplacian of both together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.systems.vmc.model.orbitals import orbital_determinants

compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # fast to slower code
ELECTRONS, WIDTH, NUCLEI, DETERMINANTS = 5, 4, 2, 2


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(("up", "own"), [(4, True), (3, False), (5, True)])
def test_the_rule_of_orbitals_gives_the_gradient_and_the_laplacian(up: int, own: bool) -> None:
    folx: Any = pytest.importorskip("folx", reason="the forward Laplacian needs folx")
    rng = np.random.default_rng(0)
    columns = (DETERMINANTS, ELECTRONS)
    # In the order in which JAX returns the keys of a dict.
    spins = ("down", "up") if up < ELECTRONS else ("up",)
    orbital = {
        spin: {
            "weights": rng.normal(size=(WIDTH, DETERMINANTS * ELECTRONS)),
            "bias": rng.normal(size=DETERMINANTS * ELECTRONS),
        }
        for spin in spins
    }
    envelopes = {
        spin: {name: rng.normal(size=(NUCLEI, *columns)) for name in ("pi", "sigma")} for spin in spins
    }
    coordinates = 3 * ELECTRONS if own else 7
    mix, nuclei = rng.normal(size=(coordinates, ELECTRONS * WIDTH)), rng.normal(size=(NUCLEI, 3))
    turn = rng.normal(size=(7, ELECTRONS * 3))

    def log(x: Any) -> Any:
        # The distances of an electron depend on its own coordinates or, if these are no walker's, on all.
        places = (x if own else x @ turn).reshape(ELECTRONS, 3)
        radii = jnp.sqrt(0.1 + jnp.sum((places[:, None] - nuclei) ** 2, axis=-1))
        h = jnp.sin(x @ mix).reshape(ELECTRONS, WIDTH)
        return orbital_determinants(orbital, envelopes, up, h, radii)[1]

    x = jnp.asarray(rng.normal(size=coordinates) / 3)
    assert f"pinchpoint_orbital_determinants_of_{up}_up" in str(jax.make_jaxpr(log)(x))
    result: Any = compiled(folx.forward_laplacian(log, disable_jit=True))(x)
    value, slope, curve = compiled(lambda x: (log(x), jax.grad(log)(x), jnp.trace(jax.hessian(log)(x))))(x)
    assert float(result.x) == pytest.approx(float(value), rel=1e-12)
    assert np.allclose(result.jacobian.dense_array, slope, rtol=1e-9, atol=1e-9)
    assert float(result.laplacian) == pytest.approx(float(curve), rel=1e-9)
    if own:
        side_by_side = folx.forward_laplacian(jax.vmap(log), disable_jit=True)
        with pytest.raises(AssertionError, match="one walker"):
            jax.eval_shape(side_by_side, jnp.stack([x, x]))
