"""The wave function as a workload: local energies of `size` walkers, and in training an Adam step along their
gradient.

Letters: B walkers, n electrons. The electrons are a second axis: the setting `system` names them (H2, LiH,
N2, or a chain such as H10). Training leaves out the moves, which need one forward pass at a time and set no
peak. Each variant has its method for the Laplacian; `chunked` uses the fastest. Where the device is not
available the arguments are shapes, which suffice to predict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case, Probe
from pinchpoint.systems.vmc import CHUNK
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.hamiltonian import local_energy
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization.optimizers import OptimizerState, adam_change
from pinchpoint.systems.vmc.optimization.sampling import key_of, start
from pinchpoint.systems.vmc.settings import Method, Stage
from pinchpoint.workloads.orbital.model import over_chunks

RATE = 1e-3
_METHODS: dict[str, Method] = {"hessian": "hessian", "loop": "loop", "forward": "forward", "chunked": "auto"}


@dataclass(frozen=True)
class Job:
    """Energies (B,) and gradients of a wave function, `chunk` walkers at a time (None: all).

    The loop over chunks is not the one of training: here a chunk need not divide the walkers, and `verify`
    also compares the gradient with respect to the position of each walker.
    """

    wave: WaveFunction
    method: Method
    chunk: int | None

    def energies(self, params: Any, x: Any) -> Any:
        """(B,) local energies of x: (B, n, 3)."""
        each = jax.vmap(local_energy(self.wave.log, self.wave.system, method=self.method), (None, 0))
        if self.chunk is None:
            return each(params, x)
        return over_chunks(lambda done, part: (done, each(params, part)), None, x, chunk=self.chunk)[1]

    def gradients(self, params: Any, x: Any) -> tuple[Any, Any, Any]:
        """Energies (B,), and the gradient of the energy with respect to parameters and x: (B, n, 3)."""
        energies = self.energies(params, x)
        weights = 2 * (energies - energies.mean()) / energies.shape[0]

        def turn(done: Any, x: Any, weights: Any) -> tuple[Any, Any]:
            by_params, by_x = jax.grad(self._surrogate, argnums=(0, 1))(params, x, weights)
            return jax.tree_util.tree_map(jnp.add, done, by_params), by_x

        zero = jax.tree_util.tree_map(jnp.zeros_like, params)
        if self.chunk is None:
            return energies, *turn(zero, x, weights)
        return energies, *over_chunks(turn, zero, x, weights, chunk=self.chunk)

    def train(self, params: Any, opt_state: OptimizerState, x: Any) -> tuple[Any, OptimizerState, Any]:
        """Parameters, Adam's state and the mean energy after one step."""
        energies, gradient, _ = self.gradients(params, x)
        change, mean, square = adam_change(gradient, opt_state.mean, opt_state.square, 0)
        moved = jax.tree_util.tree_map(lambda p, c: p - RATE * c, params, change)
        return moved, OptimizerState(mean, square, None), energies.mean()

    def _surrogate(self, params: Any, x: Any, weights: Any) -> Any:
        """A function with the gradient of the energy, which does not differentiate through the local
        energies.
        """
        return jnp.sum(weights * jax.vmap(self.wave.log, (None, 0))(params, x))


def build(
    size: int,
    *,
    device: str,
    mode: str,
    variant: str,
    seed: int = 0,
    chunk: int | None = None,
    settings: dict[str, str],
) -> Case:
    """Build one case. Only `chunked` uses chunks."""
    if chunk is not None and chunk < 1:
        raise BadInput(f"--chunk {chunk} is not a number of walkers.", hint="Give --chunk at least 1.")
    wave = wave_function(system_of(settings["system"]), NetConfig.preset(settings["net"]))
    job = Job(wave, _METHODS[variant], min(chunk or CHUNK, size) if variant == "chunked" else None)
    energies = job.energies  # one object, so that JAX traces it once for the shapes and the step
    place = _device(device)
    # Keys are arguments, not constants: a cache of compiled programs then has one program for all seeds.
    weights, walkers = key_of(seed, Stage.PARAMETERS), key_of(seed, Stage.WALKERS)
    makers: list[tuple[Callable[[Any], Any], Any]] = [
        (wave.init, weights),
        (lambda key: start(wave.system, size, key, dtype=jnp.float32), walkers),
    ]
    if mode == "train":  # compiled for nothing otherwise
        makers.insert(1, (lambda key: _zero_state(wave, key), weights))
    if place is None:
        args = tuple(jax.eval_shape(make, key) for make, key in makers)
    else:
        with jax.default_device(place):
            args = tuple(jax.jit(make)(key) for make, key in makers)
    params, x = args[0], args[-1]

    def probe() -> Probe:
        if mode == "infer":
            return Probe({"energy": np.asarray(jax.jit(energies)(params, x))})
        each, by_params, by_x = jax.jit(job.gradients)(params, x)
        leaves, _ = jax.tree_util.tree_flatten_with_path(by_params)
        named = {f"params{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}
        return Probe({"energy": np.asarray(each)}, named | {"walkers": np.asarray(by_x)})

    return Case(
        step=jax.jit(job.train if mode == "train" else energies),
        processed=jax.eval_shape(energies, params, x).shape[0],
        args=args,
        probe=probe if place is not None else None,
    )


def _zero_state(wave: WaveFunction, key: Any) -> OptimizerState:
    """The zeros of Adam's state; a function of a key, as the parameters are, whose shapes it needs."""
    zero = jax.tree_util.tree_map(jnp.zeros_like, wave.init(key))
    return OptimizerState(zero, zero, None)


def _device(device: str) -> Any:
    """The device, or None where it is not available."""
    try:
        local = jax.local_devices(backend=device)[0]
    except RuntimeError:
        return None
    return local if (local.platform == "cpu") == (device == "cpu") else None  # JAX may fall back to a CPU
