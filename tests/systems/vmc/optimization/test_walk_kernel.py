"""One kernel for all moves of two electrons takes the same moves as the sampler, one by one."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model import tensor_products
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization import walk_kernel
from pinchpoint.systems.vmc.optimization.sampling import Walkers, moves, start


@pytest.fixture
def _interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_products, "INTERPRET", True)
    monkeypatch.setattr(tensor_products, "device_applies", lambda: True)


@pytest.mark.usefixtures("_interpret")
@pytest.mark.parametrize(("name", "renew"), [("H2", True), ("He", False)])
def test_the_kernel_takes_the_same_moves(name: str, renew: bool) -> None:
    wave = wave_function(
        system_of(name), NetConfig.preset("report", one=32, two=8, layers=2 if renew else 1, determinants=2)
    )
    numbers = np.random.default_rng(1)
    params = jax.tree_util.tree_map(
        lambda leaf: numbers.normal(scale=0.3, size=leaf.shape).astype(np.float32),
        jax.eval_shape(wave.init, jax.random.key(0)),
    )
    x = numbers.normal(size=(6, 2, 3)).astype(np.float32)
    log = np.zeros(6, np.float32) if renew else jax.jit(jax.vmap(wave.log, (None, 0)))(params, x)
    walkers = Walkers(jnp.asarray(x), jnp.asarray(log), jnp.asarray(0.4))
    walked, expected = _both_ways(wave, params, walkers, steps=2, renew=renew)
    np.testing.assert_allclose(walked.x, expected.x, atol=1e-6)
    np.testing.assert_allclose(walked.log, expected.log, atol=2e-5)


def _both_ways(
    wave: WaveFunction, params: Any, walkers: Walkers, *, steps: int, renew: bool
) -> tuple[Walkers, Walkers]:
    """Return the walkers after moves by the kernel and by ordinary operations."""

    def run(walk: Any) -> Any:
        form = partial(moves, wave.log, steps=steps, renew=renew, walk=walk)
        return jax.jit(form)(params, walkers, jax.random.key(7))

    walk = walk_kernel.walk_of(wave, len(walkers.x), walkers.x.dtype)
    assert walk is not None
    (walked, fraction), (expected, other) = run(walk), run(None)
    assert 0.1 < other < 0.9 and float(fraction) == pytest.approx(float(other), abs=0.01)
    return walked, expected


@pytest.mark.gpu
def test_on_the_gpu_the_kernel_takes_the_same_moves() -> None:
    if not tensor_products.device_applies():
        pytest.skip("JAX has no single Hopper GPU here")
    wave = wave_function(system_of("H2"), NetConfig.preset("report"))
    walkers = Walkers(start(wave.system, 256, jax.random.key(2)), jnp.zeros(256), jnp.asarray(0.4))
    walked, expected = _both_ways(wave, wave.init(jax.random.key(0)), walkers, steps=10, renew=True)
    # A threshold may lie between two values that differ in their last bits.
    same = np.abs(walked.x - expected.x).max((1, 2)) < 1e-5
    assert same.mean() > 0.97
    np.testing.assert_allclose(walked.log[same], expected.log[same], atol=1e-4)


@pytest.mark.usefixtures("_interpret")
@pytest.mark.parametrize(
    ("name", "changes", "walkers", "dtype"),
    [
        ("Li", {}, 8, jnp.float32),
        ("H2", {"full": False}, 8, jnp.float32),
        ("H2", {"one": 256}, 8, jnp.float32),
        ("H2", {"layers": 3}, 8, jnp.float32),  # more weights than registers
        ("H2", {}, 4096, jnp.float32),
        ("H2", {}, 8, jnp.float64),
    ],
)
def test_other_systems_networks_counts_and_types_have_no_kernel(
    name: str, changes: Any, walkers: int, dtype: Any
) -> None:
    wave = wave_function(system_of(name), NetConfig.preset("report", **changes))
    assert walk_kernel.walk_of(wave, walkers, jnp.dtype(dtype)) is None
