"""A neural wave function of a system: network, orbitals, determinants and exact cusps combined.

Letters: n electrons (up first, then down), M nuclei, D determinants. Functions take one walker x: (n, 3), are
pure, and support jit, vmap, derivatives of any order, and a forward Laplacian. Parameters are plain dicts and
lists of arrays in the default float type of the run; walkers have the same type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.data.slater import Start, excited_starts, starts
from pinchpoint.systems.vmc.data.system import System, with_nuclei_at
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.core_potential import cores_near_electron
from pinchpoint.systems.vmc.model.determinants import WRITTEN_OUT, sum_of_determinants
from pinchpoint.systems.vmc.model.envelopes import init_cusp, init_envelope, log_cusp, soft_radii
from pinchpoint.systems.vmc.model.excited import init_states, total_sign_and_log
from pinchpoint.systems.vmc.model.features import Geometry, geometry
from pinchpoint.systems.vmc.model.ferminet import init_streams, spins, streams
from pinchpoint.systems.vmc.model.jastrow import init_jastrow, log_jastrow
from pinchpoint.systems.vmc.model.layers import launch_bound, matmul, positive, weights
from pinchpoint.systems.vmc.model.orbitals import orbital_block, orbital_determinants
from pinchpoint.systems.vmc.model.psiformer import attention_stream, init_attention

Array = jax.Array
Params = Any

_RIPPLE = 0.5  # initial size of the network's part of an orbital; a round orbital itself has size one
_OTHER_SPIN = 0.2  # initial factor of an electron in the columns of the other spin


@dataclass(frozen=True)
class WaveFunction:
    """psi of a system.

    init(key) -> params; sign_and_log(params, x) -> sign and log|psi|, both scalars; orbitals(params, x) ->
    the matrices whose determinants are summed, with one-electron factors but without the Jastrow factor:
    ((D, n, n),), or ((D, up, up), (D, down, down)), where a spin without electrons is left out. Rows are
    electrons.
    """

    system: System
    config: NetConfig
    init: Callable[[Array], Params]
    sign_and_log: Callable[[Params, Array], tuple[Array, Array]]
    orbitals: Callable[[Params, Array], tuple[Array, ...]]
    # The wave function of one state, where this one is the total of several; a walker is then (states n, 3).
    single: WaveFunction | None = None
    near: int = 0  # most cores of pseudopotentials near one electron

    @property
    def signature(self) -> tuple[object, ...]:
        """What programs of this wave function depend on, if they take the nuclei as an input."""
        system = self.system
        return system.symbols, system.up, system.down, system.pseudopotential, self.near, self.config

    def at(self, nuclei: Array) -> WaveFunction:
        """Return this wave function with its nuclei at positions (M, 3), which may be traced."""
        return _wave_function(with_nuclei_at(self.system, nuclei), self.config, self.near)

    @property
    def copies(self) -> int:
        """Copies of the electrons in a walker: one for each state."""
        return self.config.states

    def log(self, params: Params, x: Array) -> Array:
        """Return log|psi| of one walker."""
        return self.sign_and_log(params, x)[1]


def wave_function(system: System, config: NetConfig) -> WaveFunction:
    """Return the wave function of a system with the network `config`."""
    return _wave_function(system, config, cores_near_electron(system))


def _wave_function(system: System, config: NetConfig, near: int) -> WaveFunction:
    def init(key: Array, state: int = 0) -> Params:
        return _init(key, system, config, state)

    def sign_and_log(params: Params, x: Array) -> tuple[Array, Array]:
        places = geometry(system, x)
        h, radii = _network(params, system, config, places)
        if config.full and system.electrons > WRITTEN_OUT and not launch_bound(h):
            # With kernels, a psiformer would need more memory than a forecast without a GPU counts.
            kernels = config.kind == "ferminet"
            sign, log = orbital_determinants(
                params["orbital"], params["envelope"], system.up, h, radii, kernels=kernels
            )
            log = log + jnp.sum(_log_rows(params, system, places))
        else:
            matrices, shift = _matrices(params, system, config, h, radii)
            sign, log = sum_of_determinants(matrices)
            log = log + jnp.sum(_log_rows(params, system, places) - shift)
        if config.jastrow:
            log = log + log_jastrow(system, params["jastrow"], places.apart)
        return sign, log

    def orbitals(params: Params, x: Array) -> tuple[Array, ...]:
        places = geometry(system, x)
        matrices, shift = _matrices(params, system, config, *_network(params, system, config, places))
        rows = jnp.exp(_log_rows(params, system, places) - shift)
        if config.full:
            return (matrices[0] * rows[:, None],)
        return tuple(
            block * rows[part, None] for block, part in zip(matrices, spins(system).values(), strict=True)
        )

    single = WaveFunction(system, config, init, sign_and_log, orbitals, near=near)
    if config.states == 1:
        return single
    return replace(
        single,
        init=init_states(init, config.states),
        sign_and_log=total_sign_and_log(sign_and_log, config.states),
        single=single,
    )


def _init(key: Array, system: System, config: NetConfig, state: int) -> Params:
    network, *rest = jax.random.split(key, 3)
    make = init_attention if config.kind == "psiformer" else init_streams
    params: dict[str, Any] = {"network": make(network, system, config)}
    if not system.pseudopotential:
        params["cusp"] = init_cusp(system)
    params["envelope"], params["orbital"] = {}, {}
    for spin, part in zip(spins(system), rest, strict=False):
        columns = _columns(system, config, spin, state)
        params["envelope"][spin] = init_envelope(system, [start for start, _ in columns], config.determinants)
        params["orbital"][spin] = _init_orbital(part, config, columns)
    if config.jastrow and system.electrons > 1:
        params["jastrow"] = init_jastrow(system)
    elif config.jastrow:
        params["jastrow"] = {}
    return params


def _log_rows(params: Params, system: System, places: Geometry) -> Array:
    """Return the log of the one-electron factors, (n,): nuclear cusps, which pseudopotentials do not have."""
    if system.pseudopotential:
        return jnp.zeros_like(places.nuclear[:, 0])
    return log_cusp(system, params["cusp"], places)


def _columns(system: System, config: NetConfig, spin: str, state: int) -> list[tuple[Start, bool]]:
    """Return the orbitals for an electron of this spin, each with whether it belongs to that spin."""
    return [
        (start, owner == spin)
        for owner in (spins(system) if config.full else (spin,))
        for start in _starts(system, owner, state)
    ]


def _starts(system: System, spin: str, state: int) -> list[Start]:
    """Return the initial orbitals of the electrons of a spin.

    In excited states of an atom, one of the outermost electrons is in a higher orbital: if there are such
    electrons of both spins, first a down electron and then an up electron, from which the singlet and the
    triplet follow.
    """
    counts = {spin: part.stop - part.start for spin, part in spins(system).items()}
    lowest = {owner: starts(system.charges, count, cores=system.cores) for owner, count in counts.items()}
    if system.nuclei > 1 or not state:
        return lowest[spin]
    smallest = min(orbitals[-1].zeta for orbitals in lowest.values())
    outermost = [owner for owner, orbitals in lowest.items() if orbitals[-1].zeta <= 1.01 * smallest]
    if spin != outermost[state % len(outermost)]:
        return lowest[spin]
    level = 1 + (state - 1) // len(outermost)
    return excited_starts(system.charges[0], counts[spin], level, core=system.cores[0], ion=system.charge)


def _init_orbital(key: Array, config: NetConfig, columns: list[tuple[Start, bool]]) -> Params:
    size = np.array([_RIPPLE * (1.0 if own else _OTHER_SPIN) for _, own in columns])
    # Round orbitals start as their envelopes; directed ones get their shape from the network alone.
    bias = np.array([1.0 if start.round and own else 0.0 for start, own in columns])
    values = weights(key, config.one, config.determinants * len(columns))
    return {
        "weights": values * jnp.tile(jnp.asarray(size, dtype=values.dtype), config.determinants),
        "bias": jnp.tile(jnp.asarray(bias, dtype=values.dtype), config.determinants),
    }


def _network(params: Params, system: System, config: NetConfig, places: Geometry) -> tuple[Array, Array]:
    """Return the vector of each electron, (n, one), and its soft distances, (n, M)."""
    if config.kind == "psiformer":
        h = attention_stream(params["network"], system, config, places)
    else:
        h = streams(params["network"], system, places)
    return h, soft_radii(system, places)


def _matrices(
    params: Params, system: System, config: NetConfig, h: Array, radii: Array
) -> tuple[tuple[Array, ...], Array]:
    """Return blocks of orbitals, whose rows lack the cusp factor and include e^shift, and shift: (n,)."""
    parts = spins(system)
    if config.full and launch_bound(h):
        # Index of the parameters of each electron: its spin, among the spins that occur.
        owner = np.arange(system.electrons) >= (system.up or system.electrons)
        pi, sigma = (
            jnp.stack([params["envelope"][spin][name] for spin in parts])[owner.astype(int)]
            for name in ("pi", "sigma")
        )
        # All electrons at once.
        block, shift = orbital_block(_factors(params["orbital"], system, h), pi, positive(sigma), radii)
        return (block,), shift
    blocks: list[Array] = []
    shifts: list[Array] = []
    for spin, part in parts.items():
        orbital, shape = params["orbital"][spin], params["envelope"][spin]
        factors = matmul(h[part], orbital["weights"]) + orbital["bias"]
        block, shift = orbital_block(factors, shape["pi"][None], positive(shape["sigma"])[None], radii[part])
        blocks.append(block)
        shifts.append(shift)
    if config.full:
        blocks = [jnp.concatenate(blocks, axis=1)]
    return tuple(blocks), jnp.concatenate(shifts)


def _factors(params: Params, system: System, h: Array) -> Array:
    """Return the network's part of all orbitals, (n, D n), from one product with the weights of both spins.

    h: (n, one).
    """
    parts = spins(system)
    columns, bias = (
        jnp.concatenate([params[spin][name] for spin in parts], axis=-1) for name in ("weights", "bias")
    )
    both = (matmul(h, columns) + bias).reshape(h.shape[0], len(parts), -1)
    return jnp.concatenate([both[part, at] for at, part in enumerate(parts.values())])
