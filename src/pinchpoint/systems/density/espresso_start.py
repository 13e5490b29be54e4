"""A start for Quantum ESPRESSO: a density on a grid as the coefficients of an existing `charge-density.dat`.

pw.x reads this file from `PREFIX.save` with `startingpot = 'file'`. It has four kinds of Fortran records:
whether one half of the vectors is left out, their number G and the number of spins; the three reciprocal
vectors in 1 / bohr; G triples of Miller indices; and for each spin G complex coefficients in electrons per
cubic bohr. pw.x expects the vectors in its own order, so a file of its own is taken and only the coefficients
are replaced. Versions built with HDF5 use another file, which is not supported.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.files.volume import Volume

_SAME_CELL = 1e-4  # largest deviation of the product of both cells from the unit matrix


@dataclass(frozen=True, eq=False)
class WaveFile:
    """A charge-density.dat: reciprocal (3, 3), rows in 1/bohr; indices (G, 3); coefficients (spins, G)."""

    half: bool
    reciprocal: np.ndarray
    indices: np.ndarray
    coefficients: np.ndarray


def write_start(volume: Volume, path: str | Path) -> Path:
    """Replace the density of a charge-density.dat by that of a volume with the same cell.

    pw.x scales the density to its number of electrons. The file must not be spin-polarised.
    """
    waves = read_waves(path)
    if len(waves.coefficients) != 1:
        raise BadInput(
            f"{path} has {len(waves.coefficients)} spin densities.", hint="Run pw.x with nspin = 1."
        )
    cell = volume.lattice / BOHR_A
    if np.abs(waves.reciprocal @ cell.T / (2 * math.pi) - np.eye(3)).max() > _SAME_CELL:
        raise BadInput(
            f"The cell of {path} is not that of the density.", hint="Give the structure of the pw.x input."
        )
    reach = 2 * np.abs(waves.indices).max(axis=0) + 1
    if (reach > np.array(volume.grid)).any():
        raise BadInput(
            f"A grid of {' x '.join(map(str, volume.grid))} points is too coarse for the vectors of {path}.",
            hint=f"Predict the density with --grid {','.join(map(str, reach))} or finer.",
        )
    transform = np.fft.fftn(volume.total * BOHR_A**3) / volume.total.size
    values = transform[tuple(waves.indices.T)]  # a negative index counts from the end, as frequencies do
    return write_waves(path, WaveFile(waves.half, waves.reciprocal, waves.indices, values[None]))


def read_waves(path: str | Path) -> WaveFile:
    """Read a charge-density.dat of pw.x."""
    try:
        data = Path(path).read_bytes()
        records: list[bytes] = []
        at = 0
        while at < len(data):
            (size,) = struct.unpack_from("<i", data, at)
            record = data[at + 4 : at + 4 + size]
            if size < 0 or struct.unpack_from("<i", data, at + 4 + size) != (size,):
                raise ValueError("a record is not complete")
            records.append(record)
            at += size + 8
        half, count, spins = struct.unpack("<3i", records[0])
        if len(records) != 3 + spins or count < 1:
            raise ValueError(f"it has {len(records)} records for {spins} spins")
        return WaveFile(
            bool(half),
            np.frombuffer(records[1], "<f8").reshape(3, 3),
            np.frombuffer(records[2], "<i4").reshape(count, 3),
            np.stack([np.frombuffer(record, "<c16", count=count) for record in records[3:]]),
        )
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise BadInput(
            f"{path} is not a charge-density.dat of pw.x: {error}.",
            hint="Run pw.x once with electron_maxstep = 1, and give PREFIX.save/charge-density.dat.",
        ) from error


def write_waves(path: str | Path, waves: WaveFile) -> Path:
    """Write a file that `read_waves` and pw.x read."""
    spins, count = waves.coefficients.shape
    records = [
        struct.pack("<3i", int(waves.half), count, spins),
        waves.reciprocal.astype("<f8").tobytes(),
        waves.indices.astype("<i4").tobytes(),
        *(coefficients.astype("<c16").tobytes() for coefficients in waves.coefficients),
    ]
    sizes = [struct.pack("<i", len(record)) for record in records]
    return write_bytes(
        path, b"".join(size + record + size for size, record in zip(sizes, records, strict=True))
    )
