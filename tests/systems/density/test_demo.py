"""The demo's crystal: its electrons are counted, its file is read back, and bonding changes its density."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="densities are torch's")

from pinchpoint.systems.density import demo
from pinchpoint.systems.density.data.crystals.oxides import PRESETS
from pinchpoint.systems.density.data.crystals.polymorphs import polymorph
from pinchpoint.systems.density.demo import NAME, example
from pinchpoint.systems.density.files.formats import read_volume


def test_the_example_is_the_density_of_a_crystal_that_was_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SPACING_A", 0.3)  # coarser than in the demo, to save time
    result = example(tmp_path / "CHGCAR", tmp_path / "density.png", device="cpu")
    assert PRESETS["default"].cells[result.name].train == 0
    rest, volume = polymorph(NAME), read_volume(tmp_path / "CHGCAR")
    assert result.prediction.electrons_neutral == 4 * 12 + 8 * 6
    assert result.prediction.electrons_raw == pytest.approx(96, rel=0.02)  # of a coarse grid
    np.testing.assert_allclose(volume.structure.lattice, rest.lattice, atol=1e-6)
    assert 0.03 < result.change < 0.3
    assert result.picture.read_bytes().startswith(b"\x89PNG")
