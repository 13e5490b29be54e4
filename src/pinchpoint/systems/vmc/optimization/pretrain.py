"""Pretraining: bring a network's orbitals near those of Hartree-Fock before the energy is lowered.

Letters: B walkers, n electrons, D determinants. From random orbitals, more than a few electrons start so high in energy that
training may end in another state. The loss is the mean square difference of the matrices, those of every determinant; half of
the walkers follow the Hartree-Fock determinant and half the network, so that it learns where it itself goes. Many steps are one
compiled program; chunks and devices are those of the training it begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.gto import HartreeFock, log_determinant, orbital_blocks
from pinchpoint.systems.vmc.data.slater import starts
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.hamiltonian import LogPsi
from pinchpoint.systems.vmc.model.wavefunction import Params, WaveFunction
from pinchpoint.systems.vmc.optimization.chunks import split
from pinchpoint.systems.vmc.optimization.devices import placed, placed_jit
from pinchpoint.systems.vmc.optimization.optimizers import adam_change
from pinchpoint.systems.vmc.optimization.sampling import Walkers, adapt, moves, refreshed
from pinchpoint.systems.vmc.settings import ACCEPTANCE

Array = jax.Array

_STRETCH = 100  # steps in one program: between two, progress is told
_MOVES = 5  # of every walker before each step
_RATE = 3e-3
_WIDTH = 0.1  # bohr, the first; it is then set by the acceptance


class Pretrained(NamedTuple):
    """params; x: (B, n, 3) where the walkers are; losses: (steps,)."""

    params: Params
    x: Array
    losses: Array


class _Carry(NamedTuple):
    """groups: the walkers that follow Hartree-Fock, and those that follow the network where there are enough for both."""

    params: Params
    mean: Params  # Adam's
    square: Params
    groups: tuple[Walkers, ...]
    step: Array


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
    scales = [
        jnp.asarray(column_scales(wave.system, count))
        for count in (wave.system.up, wave.system.down)
        if count
    ]

    def of_one(walker: Array) -> Array:
        ours = wave.orbitals(params, walker)
        blocks = orbital_blocks(field, wave.system, walker)
        theirs = tuple(block * scale.astype(block.dtype) for block, scale in zip(blocks, scales, strict=True))
        if wave.config.full and len(theirs) > 1:
            theirs = (jax.scipy.linalg.block_diag(*theirs),)
        parts = [
            jnp.mean(jnp.sum((a - b) ** 2, axis=(1, 2)), axis=0) for a, b in zip(ours, theirs, strict=True)
        ]
        return sum(parts, start=jnp.zeros((), dtype=walker.dtype)) / wave.system.electrons

    return jnp.mean(jax.vmap(of_one)(x))


def loss_and_gradient(
    wave: WaveFunction, field: HartreeFock, params: Params, x: Array, *, chunk: int | None
) -> tuple[Array, Params]:
    """`orbital_loss` and its gradient by the parameters; `chunk` walkers at a time, which divides them (None: all)."""
    of = jax.value_and_grad(lambda params, x: orbital_loss(wave, field, params, x))
    if chunk is None or chunk >= x.shape[0]:
        return of(params, x)

    def turn(done: Any, part: Array) -> tuple[Any, None]:
        return jax.tree_util.tree_map(lambda a, b: a + b * chunk / x.shape[0], done, of(params, part)), None

    zero = jnp.zeros((), x.dtype), jax.tree_util.tree_map(jnp.zeros_like, params)
    return jax.lax.scan(turn, zero, split(x, chunk))[0]


def pretrain(
    wave: WaveFunction,
    field: HartreeFock,
    params: Params,
    x: Array,
    key: Array,
    *,
    steps: int,
    rate: float = _RATE,
    chunk: int | None = None,
    mesh: Mesh | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Pretrained:
    """Lower `orbital_loss` by Adam. x: (B, n, 3) walkers to start from; progress(steps done, loss) is told now and then.

    chunk: the most walkers at a time in the gradient, None: all; mesh: devices that share the walkers.
    """
    if not field.fits(wave.system):
        raise BadInput(
            f"Hartree-Fock orbitals of other electrons or nuclei than those of {wave.system.name}",
            hint="give hartree_fock.orbitals_for(system)",
        )
    if steps < 1:
        raise BadInput(f"{steps} steps of pretraining", hint="give at least 1, or leave pretraining out")
    devices = 1 if mesh is None else mesh.size
    half = devices * math.ceil(x.shape[0] / devices / 2)  # each group in equal shares
    parts = (x[:half], x[half:]) if half < x.shape[0] else (x,)
    groups = tuple(
        Walkers(part, jnp.zeros(len(part), x.dtype), jnp.asarray(_WIDTH, x.dtype)) for part in parts
    )
    # Copies, apart from each other: the carry is donated, and the caller's arrays are not ours.
    begun, mean, square = (
        jax.tree_util.tree_map(f, params) for f in (jnp.copy, jnp.zeros_like, jnp.zeros_like)
    )
    carry = placed(
        _Carry(begun, mean, square, jax.tree_util.tree_map(jnp.copy, groups), jnp.asarray(0)), mesh
    )
    sizes = tuple(None if chunk is None else _part(len(part), chunk, devices) for part in parts)
    step = _step(wave, field, key, rate=rate, chunks=sizes)
    programs: dict[int, Any] = {}
    losses: list[Array] = []
    for start in range(0, steps, _STRETCH):
        # A last stretch that is shorter compiles once more: better than steps that nobody asked for.
        count = min(_STRETCH, steps - start)
        if count not in programs:
            programs[count] = placed_jit(
                lambda carry, count=count: jax.lax.scan(step, carry, length=count), mesh=mesh
            )
        carry, found = programs[count](carry)
        losses.append(found)
        if progress is not None:
            progress(start + count, float(found[-1]))
    return Pretrained(
        carry.params, jnp.concatenate([group.x for group in carry.groups]), jnp.concatenate(losses)
    )


def _step(
    wave: WaveFunction, field: HartreeFock, key: Array, *, rate: float, chunks: tuple[int | None, ...]
) -> Callable[[_Carry, None], tuple[_Carry, Array]]:
    """Moves of every group by what it follows, then a step of Adam on the loss of all."""

    def by_field(params: Params, walker: Array) -> Array:
        return log_determinant(field, wave.system, walker)

    follow: tuple[LogPsi, ...] = by_field, wave.log

    def step(carry: _Carry, _: None) -> tuple[_Carry, Array]:
        keys = jax.random.split(jax.random.fold_in(key, carry.step), len(follow))
        groups: list[Walkers] = []
        # The rows of the groups stay apart, since each is spread over all devices.
        found: list[Any] = []
        for group, log_psi, part, chunk in zip(carry.groups, follow, keys, chunks, strict=False):
            group, accepted = moves(
                log_psi, carry.params, refreshed(log_psi, carry.params, group), part, steps=_MOVES
            )
            found.append(loss_and_gradient(wave, field, carry.params, group.x, chunk=chunk))
            groups.append(adapt(group, accepted, ACCEPTANCE["metropolis"]))
        total = sum(group.x.shape[0] for group in groups)
        weights = [group.x.shape[0] / total for group in groups]
        loss, gradient = jax.tree_util.tree_map(
            lambda *leaves: sum(w * leaf for w, leaf in zip(weights, leaves, strict=True)), *found
        )
        change, mean, square = adam_change(gradient, carry.mean, carry.square, carry.step)
        params = jax.tree_util.tree_map(lambda p, c: p - jnp.asarray(rate, p.dtype) * c, carry.params, change)
        return _Carry(params, mean, square, tuple(groups), carry.step + 1), loss

    return step


def _part(size: int, chunk: int, devices: int) -> int:
    """The largest chunk up to the one asked for that divides so many walkers, with an equal share for every device."""
    return max((part for part in range(devices, chunk + 1, devices) if size % part == 0), default=devices)
