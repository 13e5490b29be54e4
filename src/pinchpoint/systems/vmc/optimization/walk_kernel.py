"""All Metropolis moves of a training step in one kernel, for small networks of two electrons.

A pass of such a network takes a GPU less time than its launches: ten moves of H2 are 150 kernels of 2 us
each. A program of this kernel takes all moves of one walker, with all parameters in registers: a layer is a
sum over rows of its weights times the numbers of a vector. It computes what `sampling` does with
`WaveFunction.log`, for one electron of each spin, a FermiNet and determinants of all electrons. Letters: B
walkers, M nuclei.

With one electron per spin, the means over electrons are the vectors of the two electrons, and the means of
pairs are the pairs themselves; the pair of an electron with itself has the features 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.model import tensor_products
from pinchpoint.systems.vmc.model.features import damped_nuclear, pair_components, pair_distance, soft
from pinchpoint.systems.vmc.model.jastrow import OPPOSITE
from pinchpoint.systems.vmc.model.tensor_products import applies
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction

Array = jax.Array
Walk = Callable[..., tuple[Array, Array, Array]]

_WARPS = 8
_MOST_WALKERS = (
    512  # with more, ordinary operations are faster: the kernel takes one at a time per multiprocessor
)
_MOST_WEIGHTS = 24_000  # more, with their padding, do not fit in the registers of 8 warps
_SPINS = ("up", "down")


def walk_of(wave: Any, walkers: int, dtype: Any) -> Walk | None:
    """Return the walk of a wave function, or None if the kernel does not support it.

    dtype: that of walkers and parameters. walk(params, x, log, width, numbers, renew) -> positions (B, 2, 3),
    log|psi| (B,) and accepted moves (B,). numbers: (steps, B, 8), normal random numbers: six for the move,
    two for the threshold.
    """
    if not isinstance(wave, WaveFunction) or wave.single is not None or walkers > _MOST_WALKERS:
        return None
    system, config = wave.system, wave.config
    fits = (
        (system.up, system.down) == (1, 1)
        and not system.pseudopotential
        and config.kind == "ferminet"
        and config.full
        and config.jastrow
        and config.one in (32, 64, 128)
        and config.two in (8, 16)
        and 4 * system.nuclei <= 16
        and 2 * config.determinants <= 16
        and _weights(config.one, config.layers) <= _MOST_WEIGHTS
        and applies(width=64, dtype=dtype)
    )
    return partial(_walk, system) if fits else None


def _weights(width: int, layers: int) -> int:
    """Return how many numbers the matrices of a network have, padded to 16 rows and columns."""
    first, later = 5 * 16 * width, (3 * width + 2 * 16) * width
    return first + (layers - 1) * later + layers * 16 * 16 + 2 * width * 16


def _walk(
    system: Any, params: Any, x: Array, log: Array, width: Array, numbers: Array, *, renew: bool
) -> tuple[Array, Array, Array]:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    leaves, tree = jax.tree_util.tree_flatten(
        {
            "params": params,
            "nuclei": jnp.asarray(system.positions, x.dtype),
            "width": width,
        }
    )
    shapes = [leaf.shape for leaf in leaves]

    def kernel(x_ref: Any, log_ref: Any, numbers_ref: Any, *refs: Any) -> None:
        values, outs = refs[: len(leaves)], refs[len(leaves) :]
        _kernel(
            jax.tree_util.tree_unflatten(tree, list(values)),
            system.charges,
            (x_ref, log_ref, numbers_ref),
            outs,
            renew,
        )

    flat = [leaf.reshape(1) if not shape else leaf for leaf, shape in zip(leaves, shapes, strict=True)]
    out = pallas.pallas_call(
        kernel,
        grid=(x.shape[0],),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (x.shape, log.shape, log.shape)],
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        interpret=tensor_products.INTERPRET,
        name="walk",
    )(x, log, numbers, *flat)
    return out[0], out[1], out[2]


def _kernel(values: Any, charges: Any, inputs: Any, outs: Any, renew: bool) -> None:
    from jax.experimental import pallas

    x_ref, log_ref, numbers_ref = inputs
    walker = pallas.program_id(0)
    log_of = _log_psi(values["params"], values["nuclei"], charges)
    width = values["width"][0]
    coordinates = [(electron, axis) for electron in range(2) for axis in range(3)]

    def turn(number: Any, at: tuple[Any, ...]) -> tuple[Any, ...]:
        """One move. Turn 0 stays where it is and computes log|psi|."""
        *place, log, count = at
        moves = jnp.minimum(number, 1).astype(jnp.float32)
        row = jnp.maximum(number - 1, 0)
        draws = [numbers_ref[row, walker, column] for column in range(8)]
        there = [old + moves * width * draw for old, draw in zip(place, draws[:6], strict=True)]
        log_there = log_of(there[:3], there[3:])
        threshold = -(draws[6] * draws[6] + draws[7] * draws[7]) / 2
        accepted = (threshold < 2 * (log_there - log)).astype(jnp.float32)  # never if log|psi| is NaN there
        taken = jnp.maximum(accepted, 1.0 - moves)
        place = [jnp.where(taken > 0, new, old) for new, old in zip(there, place, strict=True)]
        return *place, jnp.where(taken > 0, log_there, log), count + moves * accepted

    first = [x_ref[walker, electron, axis] for electron, axis in coordinates]
    at = (*first, log_ref[walker], jnp.float32(0.0))
    *place, log, count = jax.lax.fori_loop(0 if renew else 1, numbers_ref.shape[0] + 1, turn, at)
    for (electron, axis), value in zip(coordinates, place, strict=True):
        outs[0][walker, electron, axis] = value
    outs[1][walker] = log
    outs[2][walker] = count


def _log_psi(params: Any, nuclei: Any, charges: Any) -> Callable[[list[Array], list[Array]], Array]:
    """Load the parameters, and return log|psi| of a walker from the positions of its electrons."""
    from jax.experimental.pallas import triton

    network, orbital, envelope = params["network"], params["orbital"], params["envelope"]
    width = network["one"][0]["bias"].shape[0]
    sixteen = jnp.arange(16, dtype=jnp.int32)
    wide = jnp.arange(width, dtype=jnp.int32)
    places = [[nuclei[at, axis] for axis in range(3)] for at in range(len(charges))]

    def matrix(ref: Any, rows: Array, columns: Array) -> Any:
        """Load a matrix, padded with zeros."""
        exists = (rows < ref.shape[0])[:, None] & (columns < ref.shape[1])[None]
        at = ref.at[
            jnp.minimum(rows, ref.shape[0] - 1)[:, None], jnp.minimum(columns, ref.shape[1] - 1)[None]
        ]
        return triton.load(at, mask=exists, other=0.0)

    def vector(ref: Any, columns: Array) -> Array:
        at = jnp.minimum(columns, ref.shape[0] - 1)
        return triton.load(ref.at[at], mask=columns < ref.shape[0], other=0.0)

    pair_layers = [
        (matrix(layer["weights"], sixteen, sixteen), vector(layer["bias"], sixteen))
        for layer in network["two"]
    ]
    one_layers = []
    for number, layer in enumerate(network["one"]):
        rows = wide if number else sixteen
        parts = [matrix(layer[name], rows, wide) for name in ("self", "mean_up", "mean_down")]
        pairs = [matrix(layer[f"pairs_{spin}"], sixteen, wide) for spin in _SPINS]
        one_layers.append((parts, pairs, vector(layer["bias"], wide)))
    exists = sixteen < orbital["up"]["bias"].shape[0]
    column = jnp.where(exists, sixteen, 0)
    orbitals = []
    for at, spin in enumerate(_SPINS):
        # The two columns of the down electron are swapped: the determinant is a sum over columns.
        here = column ^ at
        of = triton.load(
            orbital[spin]["weights"].at[wide[:, None], here[None]],
            mask=jnp.broadcast_to(exists[None], (width, 16)),
            other=0.0,
        )
        bias = triton.load(orbital[spin]["bias"].at[here], mask=exists, other=0.0)
        pi, sigma, least = [], [], []
        for nucleus in range(len(charges)):
            where = _same(here, nucleus), jax.lax.div(here, _same(here, 2)), jax.lax.rem(here, _same(here, 2))
            pi.append(triton.load(envelope[spin]["pi"].at[where], mask=exists, other=0.0))
            sigma.append(_positive(triton.load(envelope[spin]["sigma"].at[where], mask=exists, other=0.0)))
            least.append(jnp.min(jnp.where(exists, sigma[-1], jnp.inf), axis=0))
        orbitals.append((of, bias, pi, sigma, least))
    signs = jnp.where(exists, 1.0 - 2.0 * (sixteen % 2).astype(jnp.float32), 0.0)
    beta = [_positive(params["cusp"][at]) for at in range(len(charges))]
    length = _positive(params["jastrow"]["opposite"][0])

    def vector_of(features: list[Array]) -> Array:
        out = jnp.zeros((16,), jnp.float32)
        for at, feature in enumerate(features):
            out = jnp.where(sixteen == at, feature, out)
        return out

    def log_of(up: list[Array], down: list[Array]) -> Array:
        total = jnp.float32(0.0)
        h, radii = [], []
        for electron in (up, down):
            features: list[Array] = []
            distances = []
            for place, charge, over in zip(places, charges, beta, strict=True):
                to_nucleus = [a - b for a, b in zip(electron, place, strict=True)]
                distance, components = damped_nuclear(to_nucleus, charge)
                features += components
                distances.append(soft(distance, 1.0 / charge))
                total = total - charge * distance / (1.0 + over * distance)
            h.append(vector_of(features))
            radii.append(distances)
        apart = [a - b for a, b in zip(up, down, strict=True)]
        forward = pair_components(apart)
        pairs = [vector_of(part) for part in (forward, [-v for v in forward[:3]] + forward[3:], [])]
        for number, ((of_pairs, shift), (parts, mixed, bias)) in enumerate(
            zip(pair_layers, one_layers, strict=True)
        ):
            new = [jnp.tanh(jnp.sum(pair[:, None] * of_pairs, axis=0) + shift) for pair in pairs]
            pairs = [old + value for old, value in zip(pairs, new, strict=True)] if number else new
            # The pairs of each electron with the up and the down electron.
            own = [(pairs[2], pairs[0]), (pairs[1], pairs[2])]
            means = h[0][:, None] * parts[1] + h[1][:, None] * parts[2]
            new = []
            for value, (with_up, with_down) in zip(h, own, strict=True):
                terms = value[:, None] * parts[0] + means
                by_pairs = with_up[:, None] * mixed[0] + with_down[:, None] * mixed[1]
                if number:
                    before = jnp.sum(terms, axis=0) + jnp.sum(by_pairs, axis=0)
                else:  # both have 16 rows
                    before = jnp.sum(terms + by_pairs, axis=0)
                new.append(jnp.tanh(before + bias))
            h = [old + value for old, value in zip(h, new, strict=True)] if number else new
        terms = signs
        for value, distances, (of, shift, pi, sigma, least) in zip(h, radii, orbitals, strict=True):
            nearest = distances[0] * least[0]
            for distance, smallest in zip(distances[1:], least[1:], strict=True):
                nearest = jnp.minimum(nearest, distance * smallest)
            shape = sum(
                weight * jnp.exp(nearest - distance * exponent)
                for distance, weight, exponent in zip(distances, pi, sigma, strict=True)
            )
            terms = terms * (jnp.sum(value[:, None] * of, axis=0) + shift) * shape
            total = total - nearest
        between = pair_distance(apart)
        total = total + OPPOSITE * (length * between / (length + between))
        return total + jnp.log(jnp.abs(jnp.sum(terms, axis=0)))

    return log_of


def _same(like: Array, value: Any) -> Array:
    return jnp.full_like(like, value)


def _positive(raw: Array) -> Array:
    return jnp.maximum(raw, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(raw)))
