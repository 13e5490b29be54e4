"""Walkers come to be spread as |psi|^2, whatever moves them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.systems.vmc.closed import hydrogen

from pinchpoint.systems.vmc.analysis.statistics import block_estimate
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.optimization import sampling
from pinchpoint.systems.vmc.optimization.sampling import Walkers, adapt, key_of, moves, refresh, start
from pinchpoint.systems.vmc.settings import Kind, Stage

KINDS: tuple[Kind, ...] = ("metropolis", "scaled", "langevin")
NUCLEI = system_of("LiH")  # where scaled moves are short; psi need not have its nuclei there


def drawn(
    log_psi: Any,
    params: Any,
    x: Any,
    *,
    width: float,
    kind: Kind,
    calls: int,
    seed: int = 0,
    system: Any = NUCLEI,
) -> tuple[np.ndarray, float]:
    """(calls, B, n, 3) places after each of `calls` times 8 moves, and the acceptance."""

    @jax.jit
    def run(walkers: Walkers) -> Any:
        def turn(walkers: Walkers, at: Any) -> Any:
            walkers, accepted = moves(
                log_psi,
                params,
                walkers,
                key_of(seed, Stage.TRAIN, at),
                steps=8,
                kind=kind,
                system=system,
            )
            return walkers, (walkers.x, accepted)

        return jax.lax.scan(turn, walkers, jnp.arange(calls))[1]

    first = Walkers(x, jnp.zeros(len(x)), jnp.asarray(width))
    places, accepted = run(refresh(log_psi, params, first))
    return np.asarray(places), float(accepted.mean())


@pytest.mark.parametrize(
    ("kind", "width"), [("metropolis", 0.8), ("scaled", 1.6), ("langevin", 0.5), ("langevin", 1.2)]
)
def test_hydrogen_is_drawn_with_its_mean_radius_and_its_radial_law(kind: Kind, width: float) -> None:
    wave = hydrogen()
    x = start(wave.system, 192, key_of(0, Stage.WALKERS))
    places, accepted = drawn(wave.log, {"a": jnp.asarray(1.0)}, x, width=width, kind=kind, calls=100)
    radius = np.linalg.norm(places[20:, :, 0], axis=-1)
    found = block_estimate(radius)
    assert 0.3 < accepted < 0.98
    assert found.error < 0.02
    assert abs(found.mean - 1.5) < 4 * found.error
    # |psi|^2 r^2 is a gamma law of order 3. Every 40th call, so that what is compared is nearly independent.
    assert stats.kstest(radius[::40].ravel(), stats.gamma(3, scale=0.5).cdf).pvalue > 1e-3


def test_scaled_moves_are_short_near_the_nuclei() -> None:
    at_nuclei = jnp.asarray(NUCLEI.positions, jnp.float32)
    scales = sampling.move_scales(NUCLEI, jnp.concatenate([at_nuclei, at_nuclei + 1e4]))
    assert np.allclose(np.ravel(scales), [1 / 4, 1 / 2, 1, 1], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_harmonic_well_of_three_electrons_is_drawn_with_its_widths(kind: Kind) -> None:
    strength = jnp.asarray([0.5, 1.0, 2.0])

    def log(params: Any, x: Any) -> Any:
        return -0.5 * jnp.sum(params[:, None] * x**2)

    x = jax.random.normal(jax.random.key(3), (256, 3, 3))
    places, _ = drawn(log, strength, x, width=0.4, kind=kind, calls=100)
    for electron, omega in enumerate(np.asarray(strength)):
        found = block_estimate(np.square(places[20:, :, electron]).mean(axis=-1))
        assert abs(found.mean - 1 / (2 * omega)) < 4 * found.error


def test_log_psi_is_carried_along_with_the_places() -> None:
    wave, params = hydrogen(), {"a": jnp.asarray(1.0)}
    first = Walkers(start(wave.system, 64, jax.random.key(0)), jnp.zeros(64), jnp.asarray(0.5))
    for kind in KINDS:
        fresh = refresh(wave.log, params, first)
        move = partial(moves, wave.log, params, steps=20, kind=kind, system=wave.system)
        after, _ = jax.jit(move)(fresh, jax.random.key(1))
        assert np.allclose(after.log, refresh(wave.log, params, after).log, rtol=1e-6)
        assert not np.allclose(after.x, first.x)


def test_the_width_comes_to_where_half_of_the_moves_are_accepted() -> None:
    wave, params = hydrogen(), {"a": jnp.asarray(1.0)}

    @jax.jit
    def run(walkers: Walkers) -> Any:
        def turn(walkers: Walkers, at: Any) -> Any:
            walkers, accepted = moves(wave.log, params, walkers, key_of(0, Stage.BURN, at), steps=4)
            return adapt(walkers, accepted, 0.5), accepted

        return jax.lax.scan(turn, refresh(wave.log, params, walkers), jnp.arange(60))[1]

    for width in (0.01, 9.0):
        accepted = run(
            Walkers(start(wave.system, 256, jax.random.key(0)), jnp.zeros(256), jnp.asarray(width))
        )
        assert abs(float(accepted[0]) - 0.5) > 0.3
        assert float(accepted[-20:].mean()) == pytest.approx(0.5, abs=0.03)


def test_a_proposal_that_is_no_number_is_never_taken() -> None:
    def log(_: Any, x: Any) -> Any:
        return jnp.where(jnp.sum(x**2) < 1.0, 0.0, jnp.nan)

    first = Walkers(jnp.zeros((32, 1, 3)), jnp.zeros(32), jnp.asarray(1.0))
    after, accepted = moves(log, None, first, jax.random.key(0), steps=50)
    assert float(accepted) > 0.05
    assert np.all(np.linalg.norm(after.x, axis=-1) < 1.0)


@pytest.mark.parametrize(
    ("name", "charge", "at_first"),
    [("H2", 0, 1), ("LiH", 0, 3), ("N", 0, 7), ("LiH", 1, 3), ("LiH", -1, 4)],
)
def test_walkers_begin_around_the_nuclei_with_as_many_electrons_as_these_have(
    name: str, charge: int, at_first: int
) -> None:
    system = system_of(name, charge=charge)
    x = start(system, 4000, jax.random.key(0))
    assert x.shape == (4000, system.electrons, 3)
    nuclei = np.asarray(system.positions)
    mean = np.asarray(x).mean(axis=0)
    nearest = np.argmin(np.linalg.norm(mean[:, None] - nuclei, axis=-1), axis=1)
    assert np.sum(nearest == 0) == at_first


@pytest.mark.parametrize(
    ("steps", "at_most", "written"), [(10, 5, 3), (11, 5, 5), (12, 5, 1), (10, 1, 1), (1, 5, 1)]
)
def test_as_many_moves_are_written_out_as_divide_those_after_the_first(
    steps: int, at_most: int, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MOST_UNROLLED", at_most)
    wave, params = hydrogen(), {"a": jnp.asarray(1.0)}
    walkers = Walkers(jnp.zeros((4, 1, 3)), jnp.zeros(4), jnp.asarray(0.5))
    made = jax.make_jaxpr(lambda w: moves(wave.log, params, w, jax.random.key(0), steps=steps, renew=True))(
        walkers
    )
    assert max(int(found) for found in re.findall(r"\bunroll=(\d+)", str(made))) == written
