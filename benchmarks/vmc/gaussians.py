"""Energies of two electrons and two protons from explicitly correlated Gaussians, which are upper bounds.

A function of the basis is exp(-(r - s)^T A (r - s)) of the positions r of both electrons, where A is

    a + c    -c
    -c      b + c

and s are two places on the axis. Functions are added one at a time, each the best of some random ones; then
a, b, c and the places of all are optimised with the gradient of the lowest energy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.optimize import minimize
from torch import Tensor

# Added to the overlap of each function with itself. As energies are negative, this raises them, the more the
# larger the coefficients are that cancel each other: functions that nearly depend on each other are avoided.
RIDGE = 1e-11
CANDIDATES = 50  # random functions of which the best is added
STEPS = 300  # in a round, which begins with no memory of earlier steps


@dataclass(frozen=True)
class Bound:
    """An upper bound, and the functions that give it: the logarithms of a, b and c, and both places."""

    energy_ha: float
    functions: np.ndarray


def lowest(
    bond: float,
    *,
    exchange: int,
    inversion: int,
    counts: tuple[int, ...],
    rounds: int = 4,
    start: np.ndarray | None = None,
) -> Iterator[Bound]:
    """Yield upper bounds of the lowest energy with more and more functions.

    exchange: sign of the wave function when the electrons are exchanged, 1 for a singlet and -1 for a
    triplet; inversion: its sign when the positions of the electrons are inverted; start: the functions of an
    earlier bound.
    """
    signs = torch.tensor([1, exchange, inversion, exchange * inversion], dtype=torch.float64)

    def energy_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        raw = torch.tensor(flat.reshape(-1, 5), requires_grad=True)
        overlap, energy = matrices(raw, signs, bond)
        value, vector = solve(overlap.detach().numpy(), energy.detach().numpy())
        weights = torch.from_numpy(vector)
        (weights @ (energy - value * overlap) @ weights).backward()
        assert raw.grad is not None
        return value, raw.grad.numpy().ravel()

    raw = np.empty((0, 5)) if start is None else start
    generator = np.random.default_rng(len(raw))
    options: dict[str, Any] = {"maxiter": STEPS, "maxfun": 400, "maxcor": 40, "ftol": 0, "gtol": 1e-10}
    for count in counts:
        while len(raw) < count:
            raw = _extend(raw, random_functions(generator, CANDIDATES, bond), signs, bond)
        for _ in range(rounds):
            result = minimize(energy_and_slope, raw.ravel(), jac=True, method="L-BFGS-B", options=options)
            raw = result.x.reshape(-1, 5)
            print(f"      {count} functions: {result.fun:.8f} Ha", flush=True)
        overlap, energy = (matrix.numpy() for matrix in matrices(torch.from_numpy(raw), signs, bond))
        _, vector = solve(overlap, energy)
        yield Bound(float(vector @ energy @ vector / (vector @ overlap @ vector)), raw)


def _extend(raw: np.ndarray, candidates: np.ndarray, signs: Tensor, bond: float) -> np.ndarray:
    """Add the candidate that lowers the energy most when it is mixed with the lowest state."""
    count, both = len(raw), torch.from_numpy(np.concatenate([raw, candidates]))
    overlap, energy = (matrix.numpy() for matrix in matrices(both, signs, bond))
    own, level = np.diagonal(overlap)[count:] + RIDGE, np.diagonal(energy)[count:]
    if count:
        value, vector = solve(overlap[:count, :count], energy[:count, :count])
        s, h = overlap[count:, :count] @ vector, energy[count:, :count] @ vector
        # The lower root x of (value - x) (level - x own) = (h - x s)^2.
        own, middle, level = own - s**2, (value * own + level) / 2 - h * s, value * level - h**2
        level = middle - np.sqrt(np.maximum(middle**2 - own * level, 0))
    level = np.where(own > 1e-6, level / own, np.inf)
    return np.concatenate([raw, candidates[[np.argmin(level)]]])


def solve(overlap: np.ndarray, energy: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the lowest energy with the ridge, and its vector."""
    values, vectors = eigh(energy, overlap + RIDGE * np.eye(len(overlap)), subset_by_index=[0, 0])
    return float(values[0]), vectors[:, 0]


def matrices(raw: Tensor, signs: Tensor, bond: float) -> tuple[Tensor, Tensor]:
    """Return overlaps and energies of the functions, normalised first and then given their symmetry.

    raw: (N, 5), the logarithms of a, b, c, and the places; signs: of the wave function with nothing done to
    the electrons, with them exchanged, inverted, and both.
    """
    functions = torch.cat([raw[:, :3].exp(), raw[:, 3:]], dim=1)
    both = torch.stack([functions, functions[:, [1, 0, 2, 4, 3]]])
    images = torch.cat([both, both * torch.tensor([1, 1, 1, -1, -1])])
    overlaps, energies = elements(functions[:, None], images[:, None], bond)
    scale = overlaps[0].diagonal() ** -0.5
    scale = signs[:, None, None] * scale[:, None] * scale
    return (overlaps * scale).sum(0), (energies * scale).sum(0)


def elements(left: Tensor, right: Tensor, bond: float) -> tuple[Tensor, Tensor]:
    """Return the overlap and the energy of two functions (..., 5): a, b, c, and their places."""
    (p, q, c, s, t), (p2, q2, c2, s2, t2) = (_parts(function) for function in (left, right))
    # The product is a Gaussian too. Its matrix is the sum; the inverse has the entries xx, yy and xy.
    determinant = (p + p2) * (q + q2) - (c + c2) ** 2
    xx, yy, xy = (q + q2) / determinant, (p + p2) / determinant, -(c + c2) / determinant
    u, v = p * s + c * t + p2 * s2 + c2 * t2, c * s + q * t + c2 * s2 + q2 * t2
    near, far = xx * u + xy * v, xy * u + yy * v  # mean places of both electrons
    exponent = u * near + v * far - (p * s**2 + 2 * c * s * t + q * t**2)
    exponent = exponent - (p2 * s2**2 + 2 * c2 * s2 * t2 + q2 * t2**2)
    overlap = math.pi**3 * determinant**-1.5 * exponent.exp()
    # The gradients of both functions, divided by the functions, at the mean places; and their fluctuation.
    x, y, x2, y2 = near - s, far - t, near - s2, far - t2
    kinetic = 2 * (p * x + c * y) * (p2 * x2 + c2 * y2) + 2 * (c * x + q * y) * (c2 * x2 + q2 * y2)
    kinetic = kinetic + 3 * (p * p2 + c * c2) * xx + 3 * (c * c2 + q * q2) * yy
    kinetic = kinetic + 3 * ((p + q) * c2 + c * (p2 + q2)) * xy
    potential = 1 / bond + _coulomb(near - far, xx + yy - 2 * xy)
    for proton in (-bond / 2, bond / 2):
        potential = potential - _coulomb(near - proton, xx) - _coulomb(far - proton, yy)
    return overlap, overlap * (kinetic + potential)


def random_functions(generator: np.random.Generator, count: int, bond: float) -> np.ndarray:
    exponents = np.log(10) * generator.uniform((-1.3, -1.3, -2.5), (1.2, 1.2, 0.3), (count, 3))
    return np.concatenate([exponents, generator.normal(0, 0.6 * bond, (count, 2))], axis=1)


def _parts(function: Tensor) -> tuple[Tensor, ...]:
    """Return the entries of A, those of its diagonal first, and the places of a function."""
    a, b, c, s, t = function.unbind(-1)
    return a + c, b + c, -c, s, t


def _coulomb(distance: Tensor, width: Tensor) -> Tensor:
    """Return the mean of 1 / |x| over a Gaussian whose variance is width / 2 in each direction."""
    z = distance / width.sqrt()
    near = z.abs() < 1e-3
    safe = torch.where(near, 1.0, z)
    series = (1 - z**2 / 3 + z**4 / 10) * (2 / math.sqrt(math.pi))
    return torch.where(near, series, safe.erf() / safe) / width.sqrt()
