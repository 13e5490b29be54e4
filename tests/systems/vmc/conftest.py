"""The smallest runs there are, and compiled programs that all tests of a session share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.systems.vmc.data.system import System, with_nuclei_at
from pinchpoint.systems.vmc.model.config import NetConfig


@pytest.fixture(scope="session", autouse=True)
def kept_programs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path | None]:
    """A cache of compiled programs, shared by all processes of a session and, in pytest's cache, by sessions.

    Most of the time of these tests is compilation, and JAX finds a program by its text and its options.
    """
    if find_spec("jax") is None:
        yield None
        return
    import jax

    from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache

    least_s = "jax_persistent_cache_min_compile_time_secs"
    names = ("jax_compilation_cache_dir", least_s)
    before = {name: getattr(jax.config, name) for name in names}
    cache = getattr(request.config, "cache", None)  # none with -p no:cacheprovider
    own = tmp_path_factory.getbasetemp()
    session = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "programs"
    folder = use_compile_cache(session if cache is None else cache.mkdir("jax-programs"))
    jax.config.update(least_s, 0.05)
    yield folder
    for name, value in before.items():
        jax.config.update(name, value)


@dataclass(frozen=True)
class Product:
    """A product of equal orbitals, sums of e^(-a r) over the nuclei; at most one electron per spin."""

    system: System
    config: NetConfig
    init: Callable[[Any], Any]
    log: Callable[[Any, Any], Any]

    copies = 1

    @property
    def signature(self) -> tuple[object, ...]:
        return self.system.symbols, self.system.up, self.system.down, self.config

    def at(self, nuclei: Any) -> Product:
        return product(with_nuclei_at(self.system, nuclei), self.config)

    def sign_and_log(self, params: Any, x: Any) -> tuple[Any, Any]:
        """It is positive everywhere."""
        return 1.0, self.log(params, x)


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


class SharedPrograms:
    """Programs by the wave function and settings they depend on, each compiled once per session.

    Neither the seed nor the number of steps of a run is part of a program.
    """

    def __init__(self) -> None:
        self._programs: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def get(self, make: Callable[..., Any], wave: Any, settings: Any, *counts: int, **options: Any) -> Any:
        if options.get("mesh") is not None:
            return make(wave, settings, *counts, **options)
        own = replace(settings, seed=0, steps=10**6, burn=0)
        key = make.__name__, type(wave), wave.system, wave.config, own, counts, tuple(options.items())
        with self._lock:
            if key not in self._programs:
                self._programs[key] = _Program(make(wave, settings, *counts, **options), self._lock)
            return self._programs[key]


class _Program:
    """A jitted program that is lowered and compiled once for each set of shapes and dtypes."""

    def __init__(self, jitted: Any, lock: Any) -> None:
        self.jitted, self._lock = jitted, lock
        self._lowered: dict[str, Any] = {}

    def __call__(self, *args: Any) -> Any:
        return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        import jax

        leaves = jax.tree_util.tree_leaves(args)
        key = str([(getattr(leaf, "shape", ()), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves])
        if key not in self._lowered:
            self._lowered[key] = _Lowered(self.jitted.lower(*args), self._lock)
        return self._lowered[key]


class _Lowered:
    def __init__(self, lowered: Any, lock: Any) -> None:
        self.lowered, self._lock, self._compiled = lowered, lock, None

    def compile(self) -> Any:
        with self._lock:
            self._compiled = self._compiled or self.lowered.compile()
            return self._compiled


@pytest.fixture(scope="session")
def shared_programs() -> SharedPrograms:
    return SharedPrograms()


def skip_plot(path: Path, *columns: Any, **options: Any) -> Path:
    """In place of the plot of a run, which takes longer than the run."""
    path.write_bytes(b"")
    return path


def share(monkeypatch: pytest.MonkeyPatch, shared: SharedPrograms) -> None:
    """Have `train` and `evaluate` use the programs of the session, and draw nothing."""
    from pinchpoint.systems.vmc import evaluate, train
    from pinchpoint.systems.vmc.optimization import programs, training_step

    monkeypatch.setattr(train, "draw_convergence", skip_plot)
    for module, name in (
        (programs, "make_steps"),
        (training_step, "make_burn"),
        (programs, "make_burn"),
        (evaluate, "make_observe"),
    ):
        make = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, make=make, **options: shared.get(make, *args, **options)
        )


@pytest.fixture
def tiny(
    kept_programs: Path, shared_programs: SharedPrograms, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Options of a run with a closed-form wave function: 10 steps of Adam, then SPRING; blocks of 10."""
    from pinchpoint.systems.vmc import evaluate, train

    for module in (train, evaluate):
        monkeypatch.setattr(module, "wave_function", product)
    share(monkeypatch, shared_programs)
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
def tiny_network(
    kept_programs: Path, shared_programs: SharedPrograms, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The same for a real network, which takes longer to compile, with Adam alone."""
    share(monkeypatch, shared_programs)
    return {**SMALL, "optimizer": "adam"}
