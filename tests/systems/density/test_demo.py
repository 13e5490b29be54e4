"""The demo's molecule: its electrons are counted, its file read back, and bonding moves charge without
making any.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="densities are torch's")

from pinchpoint.systems.density import demo
from pinchpoint.systems.density.data.molecules import HELD_OUT, molecule
from pinchpoint.systems.density.demo import NAME, PADDING_A, example
from pinchpoint.systems.density.files.formats import read_volume


def test_the_example_is_the_density_of_a_molecule_that_was_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SPACING_A", 0.25)  # coarser than in the demo, to save time
    result = example(tmp_path / "CHGCAR", tmp_path / "density.png", device="cpu")
    assert result.name in HELD_OUT
    held, volume = molecule(NAME), read_volume(tmp_path / "CHGCAR")
    assert result.electrons == 2 * 4 + 6 + 6 and volume.electrons == pytest.approx(20, rel=5e-3)
    apart = [np.linalg.norm(x[:, None] - x, axis=2) for x in (held.positions, volume.structure.cartesian)]
    np.testing.assert_allclose(*apart, atol=1e-6)
    edge = np.linalg.norm(volume.structure.lattice, axis=1) - np.ptp(held.positions, axis=0)
    np.testing.assert_allclose(edge, 2 * PADDING_A, atol=1e-6)
    assert (
        0.1 < result.change < 0.25
    )  # that of the superposed atoms' own error against PySCF, 0.166, is about the same
    assert result.picture.read_bytes().startswith(b"\x89PNG")
