"""Functions of the distance: soft distance, envelope, radial networks, and a table of their values.

Letters: N pairs, G Gaussians, H hidden units, L networks side by side, C channels of each. Everything is a
function of the squared distance alone and smooth at zero: s = sqrt(r^2 + a^2) with the softening a. The
envelope and its first two derivatives are zero at the cutoff; beyond it, every channel is exactly zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.systems.density.model.config import DensityConfig

SILU_GAIN = 1.6791767923989418  # 1 / root mean square of SiLU of a standard normal variable
_DEEPEST = 60.0  # exp(-60) = 9e-27: negligible beside the nearest Gaussians
PAD = 16  # groups of columns are padded to multiples of this, so that a GPU reads four at a time
_INTERVALS = 16  # of a spline for each Gaussian: the error of the fit is below 1e-6
_SAMPLES = 4  # of the networks in each interval of a spline
_STEP = 0.125  # from one window of polynomials to the next, in diameters of a tile
_NODES = 24  # where the networks are evaluated for the polynomials of a window
_FIT = 2e-7  # relative error that the degree of the polynomials is chosen for
_HIGHEST = 14  # degree: beyond it, splines are as fast
_OVERLAP = 1.12  # root of the sum of squares of all Gaussians with this spacing, at any distance


def soft_distance(vectors: Tensor, config: DensityConfig) -> tuple[Tensor, Tensor]:
    """Return r^2 and s = sqrt(r^2 + a^2), each (N,), for vectors (3, N)."""
    squared = vectors.square().sum(0)
    return squared, (squared + config.softening_a**2).sqrt()


def envelope(squared: Tensor, cutoff_a: float) -> Tensor:
    """Return the envelope (N,) for squared distances r^2 (N,).

    It is 1 at the nucleus, 1 - O(r^6) near it, and 0 at the cutoff, as are its first two derivatives.
    """
    y = (squared / cutoff_a**2).clamp(max=1.0)
    # 1 - 10 y^3 + 15 y^4 - 6 y^5 in a form that loses no digits at the cutoff.
    return (1 - y) ** 3 * (1 + 3 * y + 6 * y * y)


def activate(x: Tensor) -> Tensor:
    """Apply a SiLU that preserves the mean square of a normal variable."""
    return functional.silu(x) * SILU_GAIN


class RadialNetworks(nn.Module):
    """L networks G -> H -> C that map a distance to channels, multiplied by the envelope."""

    def __init__(
        self, config: DensityConfig, networks: int, channels: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.channels = channels
        self.parts = 1  # the products with the last layer are computed in so many parts
        self.inner = nn.Parameter(torch.randn(networks, config.hidden, config.gaussians, generator=generator))
        outer = torch.randn(networks, config.hidden, channels, generator=generator) / math.sqrt(config.hidden)
        self.outer = nn.Parameter(outer)

    def forward(self, squared: Tensor, soft: Tensor) -> Tensor:
        """Return (L, N, C) for squared and soft distances (N,)."""
        hidden = hidden_layer(self.inner, squared, soft, self.config).transpose(1, 2)
        values = product_in_parts(hidden, self.outer, self.parts)
        return values.to(soft.dtype)  # under autocast the product has half precision


def product_in_parts(left: Tensor, right: Tensor, parts: int) -> Tensor:
    """Return left @ right, (L, N, C), for left (L, N, H) and right (L, H, C), in parts along N.

    The gradient of `right` has few numbers, each a sum over all N. A GPU computes it in one block of threads
    per number or so, which takes longer than everything else in a training step; parts are summed at once. N
    is split only as far as it is divisible.
    """
    parts = math.gcd(parts, left.shape[1])
    if parts == 1:
        return left @ right
    return (left.unflatten(1, (parts, -1)) @ right[:, None]).flatten(1, 2)


def hidden_layer(inner: Tensor, squared: Tensor, soft: Tensor, config: DensityConfig) -> Tensor:
    """Return the hidden units (L, H, N) times the envelope. inner: (L, H, G); squared, soft: (N,)."""
    networks, width, gaussians = inner.shape
    low, high = soft_range(config)
    centres = torch.linspace(low, high, gaussians, dtype=soft.dtype, device=soft.device)
    step = (high - low) / max(gaussians - 1, 1)
    # Deeper tails would be subnormal numbers, which a CPU multiplies many times more slowly.
    basis = torch.exp(-(soft / step - centres[:, None] / step).square().clamp(max=_DEEPEST)) / _OVERLAP
    hidden = activate(inner.reshape(networks * width, gaussians) @ basis) * envelope(squared, config.cutoff_a)
    return hidden.view(networks, width, len(soft))


@dataclass(frozen=True)
class RadialTable:
    """The values of L networks at evenly spaced soft distances, read by linear interpolation.

    values: (knots + 1, L * C), ordered by group of channels, network, channel, so that each group is
    contiguous. If the table was computed with gradients enabled, gradients pass through it to the networks.
    """

    values: Tensor
    low: float
    step: float
    shapes: tuple[tuple[int, int], ...]  # (L, channels) of each group

    @classmethod
    def of(cls, networks: RadialNetworks, widths: list[int], knots: int) -> Self:
        """Tabulate the networks. widths: sizes of the groups that C is divided into."""
        if knots < 2:
            raise BadInput(
                f"A radial table with {knots} knots is too small.",
                hint="Use at least 2 knots; with 4,096 the error is about 1e-6.",
            )
        low, high = soft_range(networks.config)
        weights = networks.outer
        soft = torch.linspace(low, high, knots + 1, dtype=weights.dtype, device=weights.device)
        values = networks(soft.square() - networks.config.softening_a**2, soft)
        # The last knot is the cutoff, where the envelope is zero up to rounding; set it to exactly zero.
        values = functional.pad(values[:, :-1], (0, 0, 0, 1))
        groups = [part.transpose(0, 1).flatten(1) for part in values.split(widths, dim=2)]
        return cls(
            torch.cat(groups, dim=1),
            low,
            (high - low) / knots,
            tuple((len(values), width) for width in widths),
        )

    def place(self, soft: Tensor) -> tuple[Tensor, Tensor]:
        """Return the left knot of each soft distance and the fraction of the way to the next knot.

        soft: (N,); both results: (N,), the knots int64.
        """
        last = len(self.values) - 1
        place = ((soft - self.low) / self.step).clamp(0, last)
        row = place.long().clamp(0, last - 1)  # NaN too: every index must lie inside the table
        return row, place - row

    def read(self, soft: Tensor) -> list[Tensor]:
        """Return (N, L, width) for each group at soft distances (N,).

        Both rows of a distance are read and interpolated in one pass.
        """
        row, right = self.place(soft)
        rows, weights = torch.stack((row, row + 1), dim=1), torch.stack((1 - right, right), dim=1)
        values = functional.embedding_bag(rows, self.values, per_sample_weights=weights, mode="sum")
        parts = values.split([networks * width for networks, width in self.shapes], dim=1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class RadialSpline:
    """The values of L networks as cubic B-splines of the soft distance, for the Triton kernel.

    A distance needs four rows instead of two, but the table is so much shorter that the rows of a group of
    channels stay in the L1 cache of a GPU. coefficients: (intervals + 3, columns), ordered like the values of
    a `RadialTable`, with each group padded by zeros to `pad_count`. A distance in interval i is interpolated
    from the rows i to i + 3.
    """

    coefficients: Tensor
    low: float
    step: float
    shapes: tuple[tuple[int, int], ...]  # (L, channels) of each group

    @classmethod
    def of(cls, networks: RadialNetworks, widths: list[int]) -> Self:
        """Fit the networks by least squares. widths: sizes of the groups that C is divided into."""
        low, high = soft_range(networks.config)
        intervals = _INTERVALS * networks.config.gaussians
        table = RadialTable.of(networks, widths, _SAMPLES * intervals)
        fit = torch.from_numpy(_spline_fit(intervals)).to(table.values.device)
        coefficients = (fit @ table.values.double()).to(table.values.dtype)
        coefficients = _pad_columns(coefficients, table.shapes)
        return cls(coefficients, low, (high - low) / intervals, table.shapes)


@dataclass(frozen=True)
class RadialPolynomials:
    """The values of L networks as polynomials on overlapping windows of soft distances, for the kernel.

    The probes of a small tile have nearly the same distance from an atom. One window contains all of them, so
    they share its coefficients. coefficients: (windows * (degree + 1), columns), by window and power, with
    columns as in a `RadialSpline`. Window i is centred at low + i * step; the variable of its polynomial is
    the distance from there divided by `half`.
    """

    coefficients: Tensor
    low: float
    step: float
    half: float  # of a window's width: the radius of a tile, and half a step
    degree: int
    shapes: tuple[tuple[int, int], ...]  # (L, channels) of each group

    @classmethod
    def of(cls, networks: RadialNetworks, widths: list[int], radius_a: float) -> Self | None:
        """Fit the networks by least squares for tiles whose probes are within `radius_a` of one point.

        Returns None if the networks vary so much over such a tile that splines are faster.
        """
        config, weights = networks.config, networks.outer
        low, high = soft_range(config)
        step = 2 * _STEP * radius_a
        half = radius_a + step / 2
        if 2 * half + step > high - low:
            return None
        windows = math.ceil((high - low - 2 * half) / step) + 1
        step = (high - low - 2 * half) / (windows - 1)
        x = _nodes()
        soft = low + half + np.arange(windows)[:, None] * step + half * x
        soft = torch.from_numpy(soft.reshape(-1)).to(weights.device)
        exact = {name: value.detach().double() for name, value in networks.named_parameters()}
        values = torch.func.functional_call(networks, exact, (soft.square() - config.softening_a**2, soft))
        groups = [part.transpose(0, 1).flatten(1) for part in values.split(widths, dim=2)]
        shapes = tuple((len(values), width) for width in widths)
        samples = torch.cat(groups, dim=1).view(windows, _NODES, -1)
        del values, groups
        degree = _least_degree(samples)
        if degree is None:
            return None
        fit = torch.from_numpy(_power_fit(degree)).to(samples.device)
        coefficients = (fit @ samples).flatten(0, 1).to(weights.dtype)
        coefficients = _pad_columns(coefficients, shapes)
        return cls(coefficients, low + half, step, half, degree, shapes)


def _least_degree(samples: Tensor) -> int | None:
    """Return the least degree of polynomials that fit the samples (windows, nodes, columns), or None.

    The coefficients of Chebyshev polynomials above the degree are the error of the fit.
    """
    fit = torch.from_numpy(_chebyshev_fit()).to(samples.device)
    squares = (fit @ samples).square_().sum(dim=(0, 2))
    if is_fake(squares):
        return _HIGHEST  # no prediction is too low
    powers = squares.cpu().numpy()
    errors = np.sqrt(np.cumsum(powers[::-1])[::-1] / max(powers.sum(), 1e-300))
    fine = [degree for degree in range(1, _HIGHEST + 1) if errors[degree + 1] < _FIT]
    return fine[0] if fine else None


def pad_count(columns: int) -> int:
    """Return the columns of a padded group."""
    return -(-columns // PAD) * PAD


def pad_groups(values: Tensor, columns: Tensor) -> Tensor:
    """Return values (N, sum of sizes) with each group of columns padded by zeros to `pad_count`.

    columns: from `padded_columns`.
    """
    return functional.pad(values, (0, 1)).index_select(1, columns)


def _pad_columns(coefficients: Tensor, shapes: tuple[tuple[int, int], ...]) -> Tensor:
    sizes = [count * width for count, width in shapes]
    return pad_groups(coefficients, padded_columns(sizes, coefficients.device))


def padded_columns(sizes: list[int], device: torch.device) -> Tensor:
    """Return the column that each padded column is read from; the one after the last is zero.

    sizes: of the groups. Not cached: a forecast would leave a tensor without data for the runs after it.
    """
    columns, start, end = [], 0, sum(sizes)
    for size in sizes:
        columns += [*range(start, start + size), *[end] * (pad_count(size) - size)]
        start += size
    return torch.tensor(columns, device=device)


@lru_cache(maxsize=4)
def _spline_fit(intervals: int) -> np.ndarray:
    """Return the matrix (rows, samples) that maps evenly spaced values to the coefficients of the splines."""
    places = np.linspace(0, intervals, _SAMPLES * intervals + 1)
    apart = np.abs(places[:, None] - np.arange(-1, intervals + 2))
    splines = (np.maximum(2 - apart, 0) ** 3 - 4 * np.maximum(1 - apart, 0) ** 3) / 6
    return np.linalg.pinv(splines)


def _nodes() -> np.ndarray:
    """Return where the networks are evaluated in a window, as variables of its polynomials."""
    return np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)


@lru_cache(maxsize=1)
def _chebyshev_fit() -> np.ndarray:
    """Return the matrix that maps the values at the nodes to coefficients of Chebyshev polynomials."""
    return np.linalg.inv(np.polynomial.chebyshev.chebvander(_nodes(), _NODES - 1))


@lru_cache(maxsize=_HIGHEST)
def _power_fit(degree: int) -> np.ndarray:
    """Return the matrix that maps the values at the nodes to coefficients of powers up to the degree."""
    return np.linalg.pinv(np.vander(_nodes(), degree + 1, increasing=True))


RadialPieces = RadialSpline | RadialPolynomials


def soft_range(config: DensityConfig) -> tuple[float, float]:
    """Return the soft distance at the nucleus and at the cutoff."""
    return config.softening_a, math.hypot(config.cutoff_a, config.softening_a)
