"""Pretraining: bring a network's orbitals near those of Hartree-Fock before the energy is lowered.

Letters: B walkers, n electrons, D determinants. From random orbitals, more than a few electrons start so high in energy that
training may end in another state. The loss is the mean square difference of the matrices, those of every determinant; half of
the walkers follow the Hartree-Fock determinant and half the network, so that it learns where it itself goes. Many steps are one
compiled program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pinchpoint.core.errors import BadInput
from pinchpoint.workloads.vmc.gto import HartreeFock, log_determinant, orbital_blocks
from pinchpoint.workloads.vmc.slater import starts
from pinchpoint.workloads.vmc.system import System
from pinchpoint.workloads.vmc.wavefunction import Params, WaveFunction

Array = jax.Array

_STRETCH = 100  # steps in one program: between two, progress is told
_MOVES = 5  # of every walker before each step
_RATE = 3e-3
_WIDTH = 0.1  # bohr, the first; it is then moved to an acceptance of a half


class Pretrained(NamedTuple):
    """params; x: (B, n, 3) where the walkers are; losses: (steps,)."""

    params: Params
    x: Array
    losses: Array


class _Carry(NamedTuple):
    params: Params
    state: optax.OptState
    x: Array
    width: Array
    key: Array


def column_scales(system: System, count: int) -> np.ndarray:
    """(count,) factors for the Hartree-Fock orbitals of a spin: one over the height at its nucleus of each one's first guess.

    A determinant leaves the size of its columns free. The network's orbitals begin with a height of about one; normalised
    ones reach 12 at an oxygen, and a core that must first grow so far is not learnt before the steps are over.
    """
    return np.array([math.sqrt(math.pi / start.zeta**3) for start in starts(system.charges, count)])


def orbital_loss(wave: WaveFunction, field: HartreeFock, params: Params, x: Array) -> Array:
    """Mean square difference of the orbitals over walkers x: (B, n, 3), determinants and entries.

    Hartree-Fock's orbitals are taken as large as the network's begin (`column_scales`). Where one determinant holds both
    spins, an electron in an orbital of the other spin should be nothing.
    """
    scales = [jnp.asarray(column_scales(wave.system, count)) for count in (wave.system.up, wave.system.down) if count]

    def of_one(walker: Array) -> Array:
        ours = wave.orbitals(params, walker)
        blocks = orbital_blocks(field, wave.system, walker)
        theirs = tuple(block * scale.astype(block.dtype) for block, scale in zip(blocks, scales, strict=True))
        if wave.config.full and len(theirs) > 1:
            theirs = (jax.scipy.linalg.block_diag(*theirs),)
        parts = [jnp.mean(jnp.sum((a - b) ** 2, axis=(1, 2)), axis=0) for a, b in zip(ours, theirs, strict=True)]
        return sum(parts, start=jnp.zeros((), dtype=walker.dtype)) / wave.system.electrons

    return jnp.mean(jax.vmap(of_one)(x))


def pretrain(
    wave: WaveFunction,
    field: HartreeFock,
    params: Params,
    x: Array,
    key: Array,
    *,
    steps: int,
    rate: float = _RATE,
    progress: Callable[[int, float], None] | None = None,
) -> Pretrained:
    """Lower `orbital_loss` by Adam. x: (B, n, 3) walkers to start from; progress(steps done, loss) is told now and then."""
    if not field.fits(wave.system):
        raise BadInput(
            f"Hartree-Fock orbitals of other electrons or nuclei than those of {wave.system.name}",
            mend="give hartree_fock.orbitals_for(system)",
        )
    if steps < 1:
        raise BadInput(f"{steps} steps of pretraining", mend="give at least 1, or leave pretraining out")
    optimizer = optax.adam(rate)
    run = _program(wave, field, optimizer)
    carry = _Carry(params, optimizer.init(params), x, jnp.asarray(_WIDTH, dtype=x.dtype), key)
    losses: list[Array] = []
    for start in range(0, steps, _STRETCH):
        # A last stretch that is shorter compiles once more: better than steps that nobody asked for.
        carry, part = run(carry, min(_STRETCH, steps - start))
        losses.append(part)
        if progress is not None:
            progress(start + part.shape[0], float(part[-1]))
    return Pretrained(carry.params, carry.x, jnp.concatenate(losses))


def _program(
    wave: WaveFunction, field: HartreeFock, optimizer: optax.GradientTransformation
) -> Callable[[_Carry, int], tuple[_Carry, Array]]:
    loss = jax.value_and_grad(lambda params, x: orbital_loss(wave, field, params, x))

    def step(carry: _Carry, _: None) -> tuple[_Carry, Array]:
        key, moving = jax.random.split(carry.key)
        x, accepted = _walk(wave, field, carry.params, carry.x, carry.width, moving)
        value, gradient = loss(carry.params, x)
        updates, state = optimizer.update(gradient, carry.state)
        width = carry.width * jnp.exp(0.5 * (accepted - 0.5)).astype(x.dtype)
        return _Carry(optax.apply_updates(carry.params, updates), state, x, width, key), value

    def many(carry: _Carry, count: int) -> tuple[_Carry, Array]:
        return jax.lax.scan(step, carry, length=count)

    return jax.jit(many, static_argnums=1)


def _walk(wave: WaveFunction, field: HartreeFock, params: Params, x: Array, width: Array, key: Array) -> tuple[Array, Array]:
    """Metropolis moves of all electrons of a walker together; the first half of the walkers by Hartree-Fock, the rest by psi."""
    half = math.ceil(x.shape[0] / 2)

    def log(places: Array) -> Array:
        by_field = jax.vmap(lambda walker: log_determinant(field, wave.system, walker))(places[:half])
        by_network = jax.vmap(lambda walker: wave.log(params, walker))(places[half:])
        return jnp.concatenate([by_field, by_network])

    def move(state: tuple[Array, Array], part: Array) -> tuple[tuple[Array, Array], Array]:
        old, value = state
        jump, draw = jax.random.split(part)
        new = old + width * jax.random.normal(jump, old.shape, dtype=old.dtype)
        proposed = log(new)
        taken = jnp.log(jax.random.uniform(draw, value.shape, dtype=old.dtype)) < 2 * (proposed - value)
        return (jnp.where(taken[:, None, None], new, old), jnp.where(taken, proposed, value)), jnp.mean(taken)

    (x, _), accepted = jax.lax.scan(move, (x, log(x)), jax.random.split(key, _MOVES))
    return x, jnp.mean(accepted)
