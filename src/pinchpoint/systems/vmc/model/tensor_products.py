"""Layers of FermiNet on the tensor cores of Hopper GPUs, as accurate as products in float32.

A float32 number is a = h + l / 2048 with two float16 numbers, h = half(a) and l = half(2048 (a - h)), which
hold 22 bits (fewer below 6e-5). Then a b = h h' + (h l' + l h') / 2048, and products of halves are exact in
float32. Tensor cores cut off the last bits of their sums, so they add only blocks of 64 terms, and the blocks
are added with rounding. Where |a| exceeds 65,504, the result is NaN: values and derivatives of a network are
bounded by its weights, but Laplacians are not, so their products are ordinary ones.

Letters: n electrons, d coordinates, k columns of the rows, w the width of the layer. The kernels are written
in Pallas for its Triton backend; `applies` says where they run, and callers keep a form for all other
devices. Results and derivatives are those of the plain forms beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.backends.jax.fake_devices import traced_capability
from pinchpoint.systems.vmc.model.determinants import WRITTEN_OUT
from pinchpoint.systems.vmc.model.features import pair_components
from pinchpoint.systems.vmc.model.layers import matmul, residual

Array = jax.Array

_SCALE = 2.0**11
_TALL = 128  # rows of a program's block
_PAIR_ROWS = 64
_DEEP = 64  # terms summed on tensor cores before rounding
_LEAST = 16  # terms of the smallest product
_WARPS, _STAGES = 8, 3
_TESTED_JAX = "0.11."  # with other versions, the plain forms run
INTERPRET = False  # whether JAX runs the kernels itself, on any device: for tests


def applies(*, width: int, dtype: Any, coordinates: int = 1) -> bool:
    """Return whether kernels exist for layers of this width and type on the default device."""
    return width % 64 == 0 and coordinates <= _TALL and dtype == jnp.float32 and device_applies()


def device_applies() -> bool:
    """Return whether the default device is a Hopper GPU, without others, and this JAX can compile for it.

    In a forecast, it is the GPU that the forecast is for.
    """
    if (capability := traced_capability()) is not None:
        return capability[0] == 9 and _has_backend()
    if jax.device_count() > 1:  # a kernel is not spread over devices, of this process or of others
        return False
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if device is None or isinstance(device, str):
        device = jax.devices(device)[0]
    return str(getattr(device, "compute_capability", "")).startswith("9.") and _has_backend()


@cache
def _has_backend() -> bool:
    """Return whether this is a JAX whose Triton backend of Pallas, now deprecated, has run the kernels."""
    if not jax.__version__.startswith(_TESTED_JAX):
        return False
    try:
        backend = import_module("jax.experimental.pallas.triton")
    except ImportError:
        return False
    return all(hasattr(backend, name) for name in ("CompilerParams", "load", "store"))


@jax.custom_jvp
def slopes_of_layer(
    slopes: Array, by_pairs: Array, by_means: Array, slope: Array, own: Array, of_pairs: Array
) -> tuple[Array, Array]:
    """Return the derivatives after a layer, (d, n, w), and the sum of squares before its tanh, (n, w).

    slopes: (d, n, k) before it; by_pairs: (d, n, p); by_means: (d, w), what the means over electrons add;
    slope: (n, w), the derivative of tanh; own: (k, w) and of_pairs: (p, w), weights.
    """
    d, n, width = slopes.shape[0], *slope.shape
    group = _TALL // d
    call = _kernel(
        partial(_slopes_kernel, group=group, add=slopes.shape[-1] == width),
        (width // _wide(width), -(-n // group)),
        [(d, n, width), (n, width)],
    )
    out, squares = call(*_operands(slopes, own), *_operands(by_pairs, of_pairs), by_means, slope)
    return out, squares


@slopes_of_layer.defjvp
def _(at: Any, towards: Any) -> Any:
    return jax.jvp(plain_slopes_of_layer, at, towards)


def plain_slopes_of_layer(
    slopes: Array, by_pairs: Array, by_means: Array, slope: Array, own: Array, of_pairs: Array
) -> tuple[Array, Array]:
    """Return the same by ordinary operations."""
    before = matmul(by_pairs, of_pairs) + matmul(slopes, own) + by_means[:, None]
    return residual(slopes, slope * before), jnp.sum(before * before, axis=0)


@jax.custom_jvp
def values_of_layer(h: Array, pairs: Array, shift: Array, own: Array, of_pairs: Array) -> Array:
    """Return the vectors after a layer, (n, w): h plus, or only, tanh(h own + pairs of_pairs + shift).

    h: (n, k); pairs: (n, p); shift: (w,); own: (k, w); of_pairs: (p, w).
    """
    return _values(h, pairs, shift, own, of_pairs)


@values_of_layer.defjvp
def _(at: Any, towards: Any) -> Any:
    return jax.jvp(plain_values_of_layer, at, towards)


def plain_values_of_layer(h: Array, pairs: Array, shift: Array, own: Array, of_pairs: Array) -> Array:
    """Return the same by ordinary operations; any leading axes."""
    return residual(h, jnp.tanh(matmul(h, own) + matmul(pairs, of_pairs) + shift[..., None, :]))


def linear(rows: Array, weights: Array) -> Array:
    """Return rows @ weights, by the kernel where there is one. rows: (..., m, k); weights: (k, w)."""
    return linear_of_part((0, rows.shape[-2]), rows, weights)


def linear_of_part(part: tuple[int, int], rows: Array, weights: Array) -> Array:
    """Return the rows of a part of the electrons times weights, (..., end - start, w).

    part: start and end; rows: (..., n, k); weights: (k, w).
    """
    if applies(width=rows.shape[-1], dtype=jnp.result_type(rows, weights)):
        return _linear_rows(part, rows, weights)
    return plain_linear_of_part(part, rows, weights)


def plain_linear_of_part(part: tuple[int, int], rows: Array, weights: Array) -> Array:
    """Return the same by ordinary operations."""
    return matmul(rows[..., slice(*part), :], weights)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _linear_rows(part: tuple[int, int], rows: Array, weights: Array) -> Array:
    return _linear(part)(rows, weights)


@_linear_rows.defjvp
def _(part: tuple[int, int], at: Any, towards: Any) -> Any:
    return jax.jvp(partial(plain_linear_of_part, part), at, towards)


def _linear(part: tuple[int, int]) -> Any:
    @jax.custom_batching.custom_vmap
    def run(rows: Array, weights: Array) -> Array:
        *leading, n, _ = rows.shape
        flat, (start, end), width = math.prod(leading), part, weights.shape[-1]
        call = _kernel(
            partial(_linear_kernel, electrons=n, start=start, count=end - start),
            (-(-width // _wide(width)), -(-flat * (end - start) // _TALL)),
            [(flat * (end - start), width)],
        )
        (out,) = call(*_operands(rows.reshape(flat * n, -1), weights))
        return out.reshape(*leading, end - start, width)

    @run.def_vmap
    def _(size: int, batched: Sequence[bool], rows: Array, weights: Array) -> tuple[Array, bool]:
        if batched[1]:
            axes = [0 if axis else None for axis in batched]
            return jax.vmap(partial(plain_linear_of_part, part), axes)(rows, weights), True
        return run(rows, weights), True

    return run


@jax.custom_batching.custom_vmap
def _values(h: Array, pairs: Array, shift: Array, own: Array, of_pairs: Array) -> Array:
    *walkers, n, _ = h.shape
    width = own.shape[-1]
    rows = math.prod(walkers) * n
    call = _kernel(
        partial(_values_kernel, electrons=n, add=h.shape[-1] == width),
        (width // _wide(width), -(-rows // _TALL)),
        [(rows, width)],
    )
    flat = [value.reshape(rows, value.shape[-1]) for value in (h, pairs)]
    (out,) = call(*_operands(flat[0], own), *_operands(flat[1], of_pairs), shift.reshape(-1, width))
    return out.reshape(*walkers, n, width)


@_values.def_vmap
def _(size: int, batched: Sequence[bool], *arguments: Array) -> tuple[Array, bool]:
    if any(batched[3:]):
        return jax.vmap(plain_values_of_layer, [0 if axis else None for axis in batched])(*arguments), True
    rows = [
        value if axis else jnp.broadcast_to(value, (size, *value.shape))
        for value, axis in zip(arguments[:3], batched[:3], strict=True)
    ]
    return _values(*rows, *arguments[3:]), True


def pair_values(
    plain: Callable[[Sequence[dict[str, Array]], int, Array], list[Array]],
    layers: Sequence[dict[str, Array]],
    up: int,
    x: Array,
) -> list[Array]:
    """Return plain(layers, up, x), means over pairs, by a kernel that never stores the vectors of pairs."""
    flat = [layer[name] for layer in layers for name in ("weights", "bias")]
    return list(_pairs(plain, up)(x, *flat))


def pairs_apply(*, electrons: int, width: int, dtype: Any) -> bool:
    """Return whether there is a kernel for the values of pairs."""
    return width in (16, 32, 64) and electrons > WRITTEN_OUT and applies(width=64, dtype=dtype)


def _pairs(of_layers: Any, up: int) -> Any:
    def plain(x: Array, *flat: Array) -> list[Array]:
        layers = [{"weights": w, "bias": b} for w, b in zip(flat[::2], flat[1::2], strict=True)]
        return of_layers(layers, up, x)

    @jax.custom_batching.custom_vmap
    def run(x: Array, *flat: Array) -> list[Array]:
        *walkers, n, _ = x.shape
        rows, count, width = math.prod(walkers) * n, len(flat) // 2, flat[1].shape[0]
        spins = sum(part > 0 for part in (up, n - up))
        padded = jnp.pad(flat[0], [(0, _LEAST - flat[0].shape[0]), (0, 0)])
        operands = [operand for w in (padded, *flat[2::2]) for operand in halves_of_weights(w)]
        out = _kernel(
            partial(_pairs_kernel, up=up, electrons=n, layers=count),
            (spins, -(-rows // _PAIR_ROWS)),
            [(rows, spins * width)] * count,
            warps=4,
        )(x.reshape(rows, 3), *flat[1::2], *operands)
        return [value.reshape(*walkers, n, -1) for value in out]

    @run.def_vmap
    def _(size: int, batched: Sequence[bool], *arguments: Array) -> tuple[list[Array], list[bool]]:
        several = [True] * (len(arguments) // 2)
        if any(batched[1:]):
            return jax.vmap(plain, [0 if axis else None for axis in batched])(*arguments), several
        return run(*arguments), several

    @jax.custom_jvp
    def differentiable(x: Array, *flat: Array) -> list[Array]:
        return run(x, *flat)

    @differentiable.defjvp
    def _(at: Any, towards: Any) -> Any:
        return jax.jvp(plain, at, towards)

    return differentiable


def _pairs_kernel(x: Any, *refs: Any, up: int, electrons: int, layers: int) -> None:
    """A block of electrons, and all others of one spin, one after the other: the means are sums of blocks."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    biases, operands, outs = refs[:layers], refs[layers:-layers], refs[-layers:]
    width = biases[0].shape[0]
    electron = _rows(jnp.arange(_PAIR_ROWS, dtype=jnp.int32), x.shape[0])
    walker = jax.lax.div(electron, jnp.full_like(electron, electrons)) * electrons
    cols = jnp.arange(width, dtype=jnp.int32)
    spin = pallas.program_id(0)
    starts = [(start, end) for start, end in ((0, up), (up, electrons)) if start < end]
    start = starts[0][0] + spin * (starts[-1][0] - starts[0][0])
    counts = [end - start for start, end in starts]
    count = counts[0] + spin * (counts[-1] - counts[0])
    here = [triton.load(x.at[electron, axis]) for axis in range(3)]
    shifts = [triton.load(bias.at[cols])[None] for bias in biases]
    terms = jnp.arange(_LEAST, dtype=jnp.int32)
    weights = [
        triton.load(ref.at[(cols if at >= 2 else terms)[:, None], cols[None]])
        for at, ref in enumerate(operands)
    ]

    def turn(number: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        there = walker + start + jnp.minimum(number, count - 1)
        share = jnp.where(jnp.full_like(electron, number) < count, 1.0, 0.0)[:, None]
        apart = [place - triton.load(x.at[there, axis]) for axis, place in enumerate(here)]
        inputs = jnp.zeros((_PAIR_ROWS, _LEAST), jnp.float32)
        for at, feature in enumerate(pair_components(apart)):
            inputs = jnp.where(terms[None] == at, feature[:, None], inputs)
        pairs, totals = inputs, []
        for layer in range(layers):
            before = _product(pairs, *weights[2 * layer : 2 * layer + 2])
            new = jnp.tanh(before + shifts[layer])
            pairs = pairs + new if layer else new
            totals.append(sums[layer] + (pairs if len(set(counts)) == 1 else share * pairs))
        return tuple(totals)

    zero = jnp.zeros((_PAIR_ROWS, width), jnp.float32)
    sums = jax.lax.fori_loop(0, max(counts), turn, (zero,) * layers)
    over = 1 / count.astype(jnp.float32)
    for out, total in zip(outs, sums, strict=True):
        triton.store(out.at[electron[:, None], spin * width + cols[None]], total * over)


def halves_of_weights(values: Array) -> tuple[Array, Array]:
    """Return h and l of the numbers, outside of kernels.

    XLA may leave out a conversion to float16 and back, and all l would be zero; it never leaves out a
    `reduce_precision`.
    """
    high = jax.lax.reduce_precision(values, exponent_bits=5, mantissa_bits=10)
    return high.astype(jnp.float16), ((values - high) * _SCALE).astype(jnp.float16)


def _operands(rows: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return rows and the halves of weights, with at least 16 terms to sum."""
    missing = -rows.shape[-1] % _LEAST
    if missing:
        rows = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
        weights = jnp.pad(weights, [(0, missing), (0, 0)])
    return rows, *halves_of_weights(weights)


def _wide(width: int) -> int:
    return 128 if width % 128 == 0 or width > 128 else 64


def _kernel(
    body: Any, grid: tuple[int, ...], shapes: Sequence[tuple[int, ...]], *, warps: int | None = None
) -> Any:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    # Blocks of columns first: programs that run at the same time read the same rows.
    return pallas.pallas_call(
        body,
        grid=grid,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=warps or _WARPS, num_stages=_STAGES),
        interpret=INTERPRET,
        name=getattr(body, "func", body).__name__.strip("_"),
    )


def _sum_of_products(
    total: Array, rows_at: Any, depth: int, high_ref: Any, low_ref: Any, cols: Array, exist: Any
) -> Array:
    """Add the products of rows and weights to `total`.

    rows_at(terms): the rows at these columns; exist: which columns of the weights do (None: all).
    """
    from jax.experimental.pallas import triton

    step = next(size for size in (_DEEP, 32, _LEAST) if depth % size == 0)

    def turn(number: Any, total: Array) -> Array:
        terms = number * step + jnp.arange(step, dtype=jnp.int32)
        mask = None if exist is None else jnp.broadcast_to(exist[None], (step, cols.shape[0]))
        other = None if exist is None else 0.0
        of_high, of_low = (
            triton.load(ref.at[terms[:, None], cols[None]], mask=mask, other=other)
            for ref in (high_ref, low_ref)
        )
        return total + _product(rows_at(terms), of_high, of_low)

    return jax.lax.fori_loop(0, depth // step, turn, total)


def _product(rows: Array, of_high: Array, of_low: Array) -> Array:
    """Return rows times weights, inside a kernel."""
    dot = partial(jnp.dot, preferred_element_type=jnp.float32)
    # Triton keeps an operand in registers if one product alone reads it. So the small products are those of
    # -rows, and there are two h.
    minus = -rows
    high = minus.astype(jnp.float16)
    low = ((minus - high.astype(jnp.float32)) * _SCALE).astype(jnp.float16)
    small = dot(high, of_low) + dot(low, of_high)
    return small * (-1 / _SCALE) + dot(rows.astype(jnp.float16), of_high)


def _block(width: int) -> tuple[Array, Array, Any]:
    """Return the numbers of a program's rows in its block, its columns, and which exist (None: all)."""
    from jax.experimental import pallas

    wide = _wide(width)
    cols = pallas.program_id(0) * wide + jnp.arange(wide, dtype=jnp.int32)
    return jnp.arange(_TALL, dtype=jnp.int32), cols, None if width % wide == 0 else cols < width


def _slopes_kernel(
    slopes: Any,
    own_high: Any,
    own_low: Any,
    pairs: Any,
    pairs_high: Any,
    pairs_low: Any,
    by_means: Any,
    slope: Any,
    out: Any,
    squares: Any,
    *,
    group: int,
    add: bool,
) -> None:
    """A block of rows: all coordinates of a few electrons, so that it has the whole sum of squares."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    d, n = slopes.shape[:2]
    local, cols, _ = _block(slope.shape[-1])
    first = pallas.program_id(1) * group
    member = jax.lax.div(local, jnp.full_like(local, d))
    # Rows beyond the last electron repeat it, and write the same numbers.
    electron = jnp.minimum(first + member, n - 1)
    coordinate = jax.lax.rem(local, jnp.full_like(local, d))

    def rows_of(ref: Any, terms: Array) -> Array:
        return triton.load(ref.at[coordinate[:, None], electron[:, None], terms[None]])

    total = jnp.zeros((_TALL, cols.shape[0]), jnp.float32)
    for ref, high, low in ((pairs, pairs_high, pairs_low), (slopes, own_high, own_low)):
        total = _sum_of_products(total, partial(rows_of, ref), ref.shape[-1], high, low, cols, None)
    total = total + triton.load(by_means.at[coordinate[:, None], cols[None]])
    new = total * triton.load(slope.at[electron[:, None], cols[None]])
    if add:
        new = new + rows_of(slopes, cols)
    triton.store(out.at[coordinate[:, None], electron[:, None], cols[None]], new)
    square = total * total
    for at in range(group):
        whole = jnp.sum(jnp.where((member == at)[:, None], square, 0.0), axis=0)
        here = jnp.broadcast_to(first + at < n, cols.shape)
        triton.store(squares.at[jnp.minimum(first + at, n - 1), cols], whole, mask=here)


def _values_kernel(
    h: Any,
    own_high: Any,
    own_low: Any,
    pairs: Any,
    pairs_high: Any,
    pairs_low: Any,
    shift: Any,
    out: Any,
    *,
    electrons: int,
    add: bool,
) -> None:
    from jax.experimental.pallas import triton

    local, cols, _ = _block(shift.shape[-1])
    rows = _rows(local, h.shape[0])

    def rows_of(ref: Any, terms: Array) -> Array:
        return triton.load(ref.at[rows[:, None], terms[None]])

    total = jnp.zeros((_TALL, cols.shape[0]), jnp.float32)
    for ref, high, low in ((pairs, pairs_high, pairs_low), (h, own_high, own_low)):
        total = _sum_of_products(total, partial(rows_of, ref), ref.shape[-1], high, low, cols, None)
    walker = jax.lax.div(rows, jnp.full_like(rows, electrons))
    new = jnp.tanh(total + triton.load(shift.at[walker[:, None], cols[None]]))
    if add:
        new = new + rows_of(h, cols)
    triton.store(out.at[rows[:, None], cols[None]], new)


def _linear_kernel(
    rows_ref: Any, high: Any, low: Any, out: Any, *, electrons: int, start: int, count: int
) -> None:
    from jax.experimental.pallas import triton

    local, cols, columns_exist = _block(out.shape[-1])
    rows = _rows(local, out.shape[0])
    counts = jnp.full_like(rows, count)
    source = jax.lax.div(rows, counts) * electrons + start + jax.lax.rem(rows, counts)

    def rows_at(terms: Array) -> Array:
        return triton.load(rows_ref.at[source[:, None], terms[None]])

    total = jnp.zeros((_TALL, cols.shape[0]), jnp.float32)
    total = _sum_of_products(total, rows_at, rows_ref.shape[-1], high, low, cols, columns_exist)
    mask = None if columns_exist is None else jnp.broadcast_to(columns_exist[None], total.shape)
    triton.store(out.at[rows[:, None], cols[None]], total, mask=mask)


def _rows(local: Array, count: int) -> Array:
    """Return the rows of a program. Rows beyond the last repeat it, and write the same numbers."""
    from jax.experimental import pallas

    return jnp.minimum(pallas.program_id(1) * local.shape[0] + local, count - 1)
