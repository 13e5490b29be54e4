"""A density as the start of Quantum ESPRESSO: its coefficients replace those of a charge-density.dat."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.espresso_start import WaveFile, read_waves, write_start, write_waves
from pinchpoint.systems.density.files.volume import Volume, grid_points

INDICES = np.array([[0, 0, 0], [1, 0, 0], [-1, 0, 0], [0, 2, -1], [-2, 1, 2]])


@pytest.fixture
def saved(toy_volume, tmp_path: Path):
    volume: Volume = toy_volume(0, (6, 7, 8))
    reciprocal = 2 * math.pi * np.linalg.inv(volume.lattice / BOHR_A).T
    path = tmp_path / "charge-density.dat"
    write_waves(path, WaveFile(False, reciprocal, INDICES, np.zeros((1, len(INDICES)))))
    return volume, path


def test_the_coefficients_are_the_fourier_sums_of_the_density(saved) -> None:
    volume, path = saved
    before = read_waves(path)
    write_start(volume, path)
    after = read_waves(path)
    points = grid_points(volume.grid)
    for index, value in zip(INDICES, after.coefficients[0], strict=True):
        wave = np.exp(-2j * math.pi * points @ index)
        assert value == pytest.approx((volume.total.reshape(-1) * wave).mean() * BOHR_A**3, abs=1e-12)
    electrons = after.coefficients[0, 0].real * volume.structure.volume / BOHR_A**3
    assert electrons == pytest.approx(volume.electrons)
    assert np.array_equal(after.indices, before.indices) and not after.half


def test_the_file_has_the_records_of_fortran(saved) -> None:
    data = saved[1].read_bytes()
    assert struct.unpack("<5i", data[:20]) == (12, 0, len(INDICES), 1, 12)
    assert struct.unpack("<i", data[20:24]) == (72,) == struct.unpack("<i", data[96:100])
    assert len(data) == 20 + 80 + (8 + 12 * len(INDICES)) + (8 + 16 * len(INDICES))


def test_a_file_that_does_not_fit_the_density_is_refused_and_kept(saved, toy_volume) -> None:
    volume, path = saved
    for other, what in ((toy_volume(0, (4, 7, 8)), "too coarse"), (None, "not that of the density")):
        if other is None:
            other = Volume(
                volume.structure.__class__(volume.lattice * 1.01, volume.species, volume.positions),
                volume.total,
            )
        old = path.read_bytes()
        with pytest.raises(BadInput, match=what):
            write_start(other, path)
        assert path.read_bytes() == old
    spins = read_waves(path)
    write_waves(path, WaveFile(False, spins.reciprocal, INDICES, np.zeros((2, len(INDICES)))))
    with pytest.raises(BadInput, match="2 spin densities"):
        write_start(volume, path)
    for damaged in (path.read_bytes()[:-9], b"", b"\x05\x00\x00\x00abc"):
        path.write_bytes(damaged)
        with pytest.raises(BadInput, match=r"not a charge-density\.dat"):
            read_waves(path)
