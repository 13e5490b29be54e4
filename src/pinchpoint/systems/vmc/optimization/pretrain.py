"""Pretraining: fit the orbitals of a network to those of Hartree-Fock before the energy is minimised.

Letters: B walkers, n electrons, D determinants. From random orbitals, more than a few electrons start so high
in energy that training may end in another state. The loss is the mean square difference of the matrices of
every determinant. Half of the walkers follow the Hartree-Fock determinant and half the network, so that the
network also learns where it is large itself. Many steps are one compiled program; chunks and devices are
those of the training that follows.
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
from pinchpoint.systems.vmc.optimization.devices import place, placing_jit
from pinchpoint.systems.vmc.optimization.optimizers import adam_change
from pinchpoint.systems.vmc.optimization.sampling import Walkers, adapt, moves, refresh
from pinchpoint.systems.vmc.settings import ACCEPTANCE

Array = jax.Array

_BLOCK = 100  # steps per program; progress is reported between programs
_MOVES = 5  # moves of every walker before each step
_RATE = 3e-3
_WIDTH = 0.1  # bohr, width of the first proposals; then adjusted to the acceptance


class PretrainResult(NamedTuple):
    """The result of pretraining. x: (B, n, 3), positions of the walkers; losses: (steps,)."""

    params: Params
    x: Array
    losses: Array


class _Carry(NamedTuple):
    """The state of pretraining.

    groups: the walkers that follow Hartree-Fock and, if there are enough, those that follow the network.
    """

    params: Params
    mean: Params  # of Adam, as is square
    square: Params
    groups: tuple[Walkers, ...]
    step: Array


def column_scales(system: System, count: int) -> np.ndarray:
    """Return factors (count,) for the Hartree-Fock orbitals of a spin.

    Each is one over the height of the initial orbital at its nucleus. The columns of a determinant may have
    any scale. The orbitals of the network start with a height of about one, while normalised orbitals reach
    12 at an oxygen nucleus; a core orbital that must first grow that far is not learned in the available
    steps.
    """
    columns = starts(system.charges, count, cores=system.cores)
    return np.array([math.sqrt(math.pi / start.zeta**3) for start in columns])


def orbital_loss(wave: WaveFunction, field: HartreeFock, params: Params, x: Array) -> Array:
    """Return the mean square difference of the orbitals over walkers x: (B, n, 3), determinants and entries.

    The Hartree-Fock orbitals are scaled to the initial size of the network's orbitals (`column_scales`). If
    one determinant has both spins, the target of an electron in an orbital of the other spin is zero.
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
    """Return `orbital_loss` and its gradient.

    chunk: walkers processed together, a divisor of their number; None for all.
    """
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
) -> PretrainResult:
    """Minimise `orbital_loss` with Adam. x: (B, n, 3) walkers to start from.

    chunk: most walkers at a time in the gradient, None for all; mesh: devices that share the walkers;
    progress(steps done, loss) is called between programs.
    """
    if not field.fits(wave.system):
        raise BadInput(
            f"The Hartree-Fock orbitals are not for the electrons and nuclei of {wave.system.name}.",
            hint="Use hartree_fock.orbitals_for(system).",
        )
    if steps < 1:
        raise BadInput(
            f"Pretraining cannot have {steps} steps.", hint="Use at least 1, or leave out pretraining."
        )
    devices = 1 if mesh is None else mesh.size
    half = devices * math.ceil(x.shape[0] / devices / 2)  # every device gets an equal share of each group
    parts = (x[:half], x[half:]) if half < x.shape[0] else (x,)
    groups = tuple(
        Walkers(part, jnp.zeros(len(part), x.dtype), jnp.asarray(_WIDTH, x.dtype)) for part in parts
    )
    # Copies, because the carry is donated and the arrays belong to the caller.
    first, mean, square = (
        jax.tree_util.tree_map(f, params) for f in (jnp.copy, jnp.zeros_like, jnp.zeros_like)
    )
    carry = place(_Carry(first, mean, square, jax.tree_util.tree_map(jnp.copy, groups), jnp.asarray(0)), mesh)
    sizes = tuple(None if chunk is None else _part(len(part), chunk, devices) for part in parts)
    step = _step(wave, field, key, rate=rate, chunks=sizes)
    programs: dict[int, Any] = {}
    losses: list[Array] = []
    for start in range(0, steps, _BLOCK):
        # A shorter last block has to be compiled as well, which is better than additional steps.
        count = min(_BLOCK, steps - start)
        if count not in programs:
            programs[count] = placing_jit(
                lambda carry, count=count: jax.lax.scan(step, carry, length=count), mesh=mesh
            )
        carry, block_losses = programs[count](carry)
        losses.append(block_losses)
        if progress is not None:
            progress(start + count, float(block_losses[-1]))
    return PretrainResult(
        carry.params, jnp.concatenate([group.x for group in carry.groups]), jnp.concatenate(losses)
    )


def _step(
    wave: WaveFunction, field: HartreeFock, key: Array, *, rate: float, chunks: tuple[int | None, ...]
) -> Callable[[_Carry, None], tuple[_Carry, Array]]:
    """Return a step: moves of every group along what it follows, then Adam on the loss of all walkers."""

    def by_field(params: Params, walker: Array) -> Array:
        return log_determinant(field, wave.system, walker)

    follow: tuple[LogPsi, ...] = by_field, wave.log

    def step(carry: _Carry, _: None) -> tuple[_Carry, Array]:
        keys = jax.random.split(jax.random.fold_in(key, carry.step), len(follow))
        groups: list[Walkers] = []
        # The groups stay separate, because each is spread over all devices.
        results: list[Any] = []
        for group, log_psi, part, chunk in zip(carry.groups, follow, keys, chunks, strict=False):
            group, accepted = moves(
                log_psi, carry.params, refresh(log_psi, carry.params, group), part, steps=_MOVES
            )
            results.append(loss_and_gradient(wave, field, carry.params, group.x, chunk=chunk))
            groups.append(adapt(group, accepted, ACCEPTANCE["metropolis"]))
        total = sum(group.x.shape[0] for group in groups)
        weights = [group.x.shape[0] / total for group in groups]
        loss, gradient = jax.tree_util.tree_map(
            lambda *leaves: sum(w * leaf for w, leaf in zip(weights, leaves, strict=True)), *results
        )
        change, mean, square = adam_change(gradient, carry.mean, carry.square, carry.step)
        params = jax.tree_util.tree_map(lambda p, c: p - jnp.asarray(rate, p.dtype) * c, carry.params, change)
        return _Carry(params, mean, square, tuple(groups), carry.step + 1), loss

    return step


def _part(size: int, chunk: int, devices: int) -> int:
    """Return the largest chunk up to `chunk` that divides the walkers, with an equal share per device."""
    return max((part for part in range(devices, chunk + 1, devices) if size % part == 0), default=devices)
