"""Programs that are compiled once for all runs of these tests, and the smallest runs there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.config import NetConfig


@pytest.fixture(scope="session")
def kept_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiling takes seconds, a run of these tests none: what is compiled is kept in a folder that all
    workers share.
    """
    jax = pytest.importorskip("jax", reason="wave functions are JAX's")
    from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    own = tmp_path_factory.getbasetemp()
    yield use_compile_cache((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "programs")
    for name, value in before.items():
        jax.config.update(name, value)


@dataclass(frozen=True)
class Product:
    """Each electron in the same orbital, a sum of e^(-a r) about the nuclei: for at most one electron of each
    spin.
    """

    system: System
    config: NetConfig
    init: Callable[[Any], Any]
    log: Callable[[Any, Any], Any]


def product(system: System, config: NetConfig) -> Product:
    """It compiles in a second, where a network takes many."""
    import jax
    import jax.numpy as jnp

    def init(key: Any) -> Any:
        return {"a": [1.2 + 0.01 * jax.random.normal(key, (1,))], "b": jnp.zeros(len(system.charges))}

    def log(params: Any, x: Any) -> Any:
        apart = jnp.sqrt(jnp.sum((x[:, None] - jnp.asarray(system.positions, x.dtype)) ** 2, axis=-1))
        return jnp.sum(jax.nn.logsumexp(params["b"] - params["a"][0] * apart, axis=1))

    return Product(system, config, init, log)


@pytest.fixture
def tiny(kept_programs: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Choices of a run of a wave function in closed form: Adam for 10 steps, then SPRING; programs of 10
    steps.
    """
    from pinchpoint.systems.vmc import evaluate, train

    for module in (train, evaluate):
        monkeypatch.setattr(module, "wave_function", product)
    return dict(SMALL)


SMALL: dict[str, Any] = {
    "device": "cpu",
    "walkers": 8,
    "moves": 2,
    "burn": 2,
    "adam_steps": 10,
    "steps": 40,
    "method": "hessian",
    "net_changes": {"one": 4, "two": 2, "layers": 1, "determinants": 1},
}


@pytest.fixture
def tiny_network(kept_programs: Path) -> dict[str, Any]:
    """The same of a real network, which takes longer to compile, by Adam alone."""
    return {**SMALL, "optimizer": "adam"}
