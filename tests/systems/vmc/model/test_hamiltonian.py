"""Potentials and local energies against closed forms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.systems.vmc.closed import helium, hydrogen, hydrogen_walkers

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.hamiltonian import local_energies, local_energy, potential
from pinchpoint.systems.vmc.model.wavefunction import wave_function
from pinchpoint.systems.vmc.settings import Method


def test_the_potential_of_h2_is_the_sum_of_its_pairs() -> None:
    system = system_of("H2")
    nuclei = np.asarray(system.positions)
    x = np.array([[0.1, 0.2, -0.3], [0.5, -0.4, 1.1]])
    wanted = 1 / np.linalg.norm(nuclei[0] - nuclei[1]) + 1 / np.linalg.norm(x[0] - x[1])
    for electron in x:
        for nucleus in nuclei:
            wanted -= 1 / np.linalg.norm(electron - nucleus)
    assert float(potential(system, jnp.asarray(x))) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("method", ["hessian", "loop", "forward"])
def test_the_local_energy_of_exact_hydrogen_is_minus_a_half_everywhere(method: Method) -> None:
    wave = hydrogen()
    x = jnp.asarray(hydrogen_walkers(256, 1.0, 0), jnp.float32)
    energies = jax.jit(local_energies(wave.log, wave.system, method=method))({"a": jnp.asarray(1.0)}, x)
    # Two terms of 1/r are taken off each other, in float32: their rounding is left.
    bound = 1e-6 * (1 + 1 / np.linalg.norm(x, axis=-1)[:, 0])
    assert np.all(np.abs(np.asarray(energies) + 0.5) < bound)


def test_the_local_energy_of_a_wrong_exponent_is_the_closed_form() -> None:
    wave, a = hydrogen(), 0.8
    x = jnp.asarray(hydrogen_walkers(16, a, 0), jnp.float32)
    found = jax.jit(jax.vmap(local_energy(wave.log, wave.system, method="hessian"), (None, 0)))(
        {"a": jnp.asarray(a)}, x
    )
    r = np.linalg.norm(x, axis=-1)[:, 0]
    assert np.allclose(found, -(a**2) / 2 + (a - 1) / r, rtol=1e-5)


def test_energies_in_chunks_are_those_of_all_at_once_in_the_same_order() -> None:
    wave = helium()
    params: Any = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (24, 2, 3))
    chunks = (None, 4, 100)
    whole, *parts = jax.jit(
        lambda: [local_energies(wave.log, wave.system, method="loop", chunk=c)(params, x) for c in chunks]
    )()
    assert all(np.allclose(part, whole, rtol=1e-5) for part in parts)


def test_a_chunk_that_does_not_divide_the_walkers_is_refused() -> None:
    wave = helium()
    with pytest.raises(BadInput, match="cannot be divided"):
        local_energies(wave.log, wave.system, chunk=5)(wave.init(None), jnp.ones((24, 2, 3)))


@pytest.mark.parametrize("method", ["forward", "loop"])
def test_every_product_of_the_energies_of_lih_has_all_digits_on_a_card(method: Method) -> None:
    system = system_of("LiH")
    wave = wave_function(system, NetConfig.preset("small"))
    params = jax.eval_shape(wave.init, jax.eval_shape(lambda: jax.random.key(0)))
    x = jax.ShapeDtypeStruct((8, 4, 3), jnp.float32)
    traced = jax.jit(local_energies(wave.log, system, method=method)).trace(params, x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert products and all("precision = [HIGHEST, HIGHEST]" in line for line in products)
