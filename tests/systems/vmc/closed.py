"""Wave functions in closed form, whose energies and distributions are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.data.system import System, system_of


@dataclass(frozen=True)
class Closed:
    """A wave function with the interface of a neural one."""

    system: System
    init: Callable[[Any], Any]
    log: Callable[[Any, Any], Any]

    copies = 1

    @property
    def signature(self) -> System:
        return self.system

    def at(self, nuclei: Any) -> Closed:
        """Its only nucleus is at the origin."""
        return self

    def sign_and_log(self, params: Any, x: Any) -> tuple[Any, Any]:
        """Every one of them is positive."""
        return jnp.ones((), x.dtype), self.log(params, x)


def hydrogen(a: float = 1.0) -> Closed:
    """e^(-a r): E = a^2 / 2 - a, dE/da = a - 1, <r> = 1.5 / a; the local energy is -a^2 / 2 + (a - 1) / r."""

    def log(params: Any, x: Any) -> Any:
        return -params["a"] * jnp.sqrt(jnp.sum(x**2))

    return Closed(system_of("H"), lambda _: {"a": jnp.asarray(a)}, log)


def hydrogen_walkers(count: int, a: float, seed: int) -> np.ndarray:
    """(count, 1, 3) places drawn from e^(-2 a r) itself."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=(count, 1, 3))
    return (
        direction
        / np.linalg.norm(direction, axis=-1, keepdims=True)
        * rng.gamma(3, 1 / (2 * a), size=(count, 1, 1))
    )


def helium() -> Closed:
    """A product with the cusps of helium and a few parameters to train."""

    def log(params: Any, x: Any) -> Any:
        r = jnp.sqrt(jnp.sum(x**2, axis=-1))
        apart = jnp.sqrt(jnp.sum((x[0] - x[1]) ** 2))
        shape = jnp.sum(jnp.tanh(r[:, None] * params["in"]) @ params["out"])
        return -params["a"] * jnp.sum(r) + 0.5 * apart / (1 + params["b"] ** 2 * apart) + shape

    def init(_: Any) -> Any:
        return {
            "a": jnp.asarray(1.9),
            "b": jnp.asarray(0.6),
            "in": jnp.linspace(0.3, 1.2, 6),
            "out": 0.05 * jnp.sin(jnp.arange(6.0)),
        }

    return Closed(system_of("He"), init, log)
