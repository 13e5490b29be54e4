"""GTH pseudopotentials: the tables of PySCF or CP2K, and their form factors in reciprocal space.

    local      V(g) = -4 pi Z exp(-x^2 / 2) / g^2
              + (2 pi)^(3/2) r^3 exp(-x^2 / 2) (C1 + C2 (3 - x^2) + C3 (15 - 10 x^2 + x^4) + ...),  x = g r
    projector  p(g) = 4 pi integral of r^2 j_l(g r) p_i(r),  p_i(r) ~ r^(l + 2 i - 2) exp(-r^2 / (2 r_l^2))

Goedecker, Teter and Hutter, Phys. Rev. B 54, 1703 (1996); Hartwigsen, Goedecker and Hutter, Phys. Rev. B 58,
3641 (1998); Krack, Theor. Chem. Acc. 114, 145 (2005). Hartree atomic units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.molecules import VALENCE
from pinchpoint.systems.density.data.quantum import require_pyscf

LARGEST_DEGREE = 2


@dataclass(frozen=True, eq=False)
class Channel:
    """The projectors of one angular momentum. strengths: (I, I), symmetric."""

    degree: int
    radius: float
    strengths: np.ndarray


@dataclass(frozen=True, eq=False)
class Potential:
    """The pseudopotential of an element."""

    symbol: str
    valence: int
    radius: float
    coefficients: tuple[float, ...]  # C1, C2, ... of the local part
    channels: tuple[Channel, ...]


def table_path() -> Path:
    """Return the file of GTH potentials for PBE that comes with PySCF."""
    require_pyscf()
    from pyscf.pbc.gto import pseudo

    return Path(str(pseudo.__file__)).with_name("gth-pbe.dat")


def read_potentials(path: str | Path, species: set[str]) -> dict[str, Potential]:
    """Read the potentials of these elements, with the valence of `VALENCE`, from a table in CP2K's format."""
    potentials: dict[str, Potential] = {}
    lines = [line.split("#")[0].split() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line]
    for number, line in enumerate(lines):
        symbol = line[0]
        if symbol in species and symbol not in potentials and f"GTH-PBE-q{VALENCE.get(symbol)}" in line[1:]:
            potentials[symbol] = _parse(symbol, lines[number + 1 : number + 30])
    if missing := sorted(species - set(potentials)):
        raise BadInput(
            f"{path} has no GTH-PBE pseudopotential for {', '.join(missing)}.",
            hint=f"Use elements among {', '.join(VALENCE)}, and a table of CP2K or PySCF.",
        )
    return potentials


def _parse(symbol: str, lines: list[list[str]]) -> Potential:
    shells, (local, *channel_lines) = lines[0], lines[1:]
    count = int(local[1])
    coefficients = tuple(float(text) for text in local[2 : 2 + count])
    channels, at = [], 1
    for degree in range(int(channel_lines[0][0])):
        radius, size = float(channel_lines[at][0]), int(channel_lines[at][1])
        strengths = np.zeros((size, size))
        rows = [channel_lines[at][2:], *channel_lines[at + 1 : at + size]]
        for row in range(size):
            strengths[row, row:] = strengths[row:, row] = [float(text) for text in rows[row][: size - row]]
        at += max(1, size)
        if size:
            channels.append(Channel(degree, radius, strengths))
    return Potential(symbol, sum(map(int, shells)), float(local[0]), coefficients, tuple(channels))


def local_form(potential: Potential, square: Tensor) -> Tensor:
    """Return the local potential at |g|^2 (G,), times the volume of the cell.

    At g = 0 it is the finite part, without the divergence that cancels with the other charges.
    """
    x2 = square * potential.radius**2
    polynomials = (
        torch.ones_like(x2),
        3 - x2,
        15 - 10 * x2 + x2**2,
        105 - 105 * x2 + 21 * x2**2 - x2**3,
    )
    short = sum(
        (c * p for c, p in zip(potential.coefficients, polynomials, strict=False)), torch.zeros_like(x2)
    )
    at_zero = square < 1e-12
    coulomb = torch.where(
        at_zero,
        torch.full_like(x2, 2 * math.pi * potential.valence * potential.radius**2),
        -4 * math.pi * potential.valence * torch.exp(-x2 / 2) / torch.where(at_zero, 1.0, square),
    )
    return coulomb + (2 * math.pi) ** 1.5 * potential.radius**3 * torch.exp(-x2 / 2) * short


def projector_forms(channel: Channel, vectors: Tensor) -> Tensor:
    """Return the projectors at vectors (G, 3), as (2 l + 1, I, G): radial part times real harmonic.

    They lack the factor (-i)^l / sqrt(volume), which cancels between the two projectors of a term.
    """
    degree, size = channel.degree, len(channel.strengths)
    x2 = vectors.square().sum(1) * channel.radius**2
    fall = torch.exp(-x2 / 2)
    # Generalised Laguerre polynomials L_m^(l + 1/2)(x^2 / 2), m = 0, 1, 2: the Hankel transform of
    # r^(l + 2 m) exp(-r^2 / 2) is proportional to them.
    a, y = degree + 0.5, x2 / 2
    laguerre = (torch.ones_like(y), 1 + a - y, y**2 / 2 - (a + 2) * y + (a + 1) * (a + 2) / 2)
    radial = []
    for m in range(size):
        power = degree + (4 * (m + 1) - 1) / 2
        scale = math.sqrt(2 / math.gamma(power)) * channel.radius ** (2 * degree + 3 + 2 * m - power)
        radial.append(
            4 * math.pi * scale * math.sqrt(math.pi / 2) * 2**m * math.factorial(m) * laguerre[m] * fall
        )
    return harmonics(degree, vectors)[:, None] * torch.stack(radial)


def harmonics(degree: int, vectors: Tensor) -> Tensor:
    """Return the real solid harmonics g^l Y_lm at vectors (G, 3), as (2 l + 1, G)."""
    x, y, z = vectors.T
    if degree == 0:
        return torch.full_like(x, math.sqrt(1 / (4 * math.pi)))[None]
    if degree == 1:
        return math.sqrt(3 / (4 * math.pi)) * vectors.T
    if degree == 2:
        square = x * x + y * y + z * z
        rows = (x * y, y * z, (3 * z * z - square) / math.sqrt(12), z * x, (x * x - y * y) / 2)
        return math.sqrt(15 / (4 * math.pi)) * torch.stack(rows)
    raise BadInput(
        f"Projectors of degree {degree} are not supported.",
        hint=f"Use elements whose pseudopotentials have degrees up to {LARGEST_DEGREE}.",
    )
