"""Both streams: their rule for a forward Laplacian against second derivatives of the plain function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.features import geometry
from pinchpoint.systems.vmc.model.ferminet import init_streams, streams
from pinchpoint.systems.vmc.model.pairs import spin_means

compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # fast to slower code


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def system_of_spins(up: int, electrons: int) -> System:
    return replace(system_of("B"), up=up, down=electrons - up)


def params_of(system: System, *, one: int, layers: int) -> Any:
    config = NetConfig("ferminet", determinants=1, one=one, two=3, layers=layers)
    return init_streams(jax.random.key(0), system, config)


def derivatives_of(function: Any, x: Any) -> tuple[Any, tuple[Any, ...]]:
    """By the rule, and by the plain function: value, all first derivatives, Laplacian."""
    folx: Any = pytest.importorskip("folx", reason="the forward Laplacian needs folx")
    value, slopes, curves = compiled(
        lambda x: (function(x), jax.jacfwd(function)(x), jax.hessian(function)(x))
    )(x)
    plain = value, jnp.moveaxis(slopes, -1, 0), jnp.trace(curves, axis1=-2, axis2=-1)
    return compiled(folx.forward_laplacian(function, disable_jit=True))(x), plain


# 4: as many as there are features, so that the first layer is residual too.
@pytest.mark.parametrize(
    ("up", "electrons", "own", "width"),
    [(3, 5, False, 6), (4, 5, True, 4), (5, 5, True, 6)],
)
def test_the_rule_of_the_streams_gives_all_first_and_second_derivatives(
    up: int, electrons: int, own: bool, width: int
) -> None:
    rng = np.random.default_rng(1)
    system = system_of_spins(up, electrons)
    params = init_streams(
        jax.random.key(0), system, NetConfig("ferminet", determinants=1, one=width, two=3, layers=2)
    )
    mix, turn = rng.normal(size=(7, electrons, 3)), rng.normal(size=(3, 3))

    def vectors(x: Any) -> Any:
        # Of no plain coordinates: the rule must hold however the positions depend on them. `own`: each
        # electron's on its own three.
        bent = jnp.sin(x) + x
        places = bent.reshape(-1, 3) @ turn if own else jnp.einsum("c,cik->ik", bent, mix)
        return streams(params, system, geometry(system, places))

    x = jnp.asarray(rng.normal(size=3 * electrons if own else 7) / 3)
    assert f"pinchpoint_streams_of_2_layers_{1 if up == electrons else 2}_spins_{up}_up" in str(
        jax.make_jaxpr(vectors)(x)
    )
    result, (value, slopes, laplacian) = derivatives_of(vectors, x)
    assert result.x.shape == (electrons, width)
    assert np.allclose(result.x, value, rtol=1e-12)
    assert np.allclose(result.jacobian.dense_array, slopes, atol=1e-12)
    assert np.allclose(result.laplacian, laplacian, atol=1e-11)


def test_positions_that_depend_on_another_electrons_coordinates_give_no_wrong_derivatives() -> None:
    system = system_of_spins(3, 5)
    params = init_streams(
        jax.random.key(0), system, NetConfig("ferminet", determinants=1, one=4, two=3, layers=1)
    )

    def vectors(x: Any) -> Any:
        return streams(params, system, geometry(system, jnp.roll(x.reshape(-1, 3), 1, axis=0)))

    result, (value, *_) = derivatives_of(vectors, jnp.arange(15) / 10)
    assert np.allclose(result.x, value) and np.isnan(result.jacobian.dense_array).all()


def test_walkers_side_by_side_inside_a_laplacian_are_refused() -> None:
    folx: Any = pytest.importorskip("folx", reason="the forward Laplacian needs folx")
    system = system_of_spins(3, 5)
    params = init_streams(
        jax.random.key(0), system, NetConfig("ferminet", determinants=1, one=4, two=3, layers=1)
    )

    def vectors(x: Any) -> Any:
        return jax.vmap(lambda walker: streams(params, system, geometry(system, walker)))(x)

    with pytest.raises(AssertionError, match="one walker"):
        jax.eval_shape(folx.forward_laplacian(vectors, disable_jit=True), jnp.ones((2, 5, 3)))


def test_few_electrons_take_no_rule() -> None:
    system = system_of("He")
    params = init_streams(
        jax.random.key(0), system, NetConfig("ferminet", determinants=1, one=4, two=3, layers=1)
    )
    program = jax.make_jaxpr(lambda x: streams(params, system, geometry(system, x)))(jnp.ones((2, 3)))
    assert "pinchpoint_streams" not in str(program)


@pytest.mark.parametrize("up", [0, 1, 2, 4])
def test_means_over_spins_lie_side_by_side_and_a_missing_spin_has_none(up: int) -> None:
    rows = np.random.default_rng(0).normal(size=(2, 4, 3))
    wanted = np.concatenate([part.mean(1) for part in (rows[:, :up], rows[:, up:]) if part.shape[1]], axis=1)
    assert np.allclose(spin_means(jnp.asarray(rows), up), wanted)
