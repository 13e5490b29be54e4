"""Datasets of oxides: made by worker processes, resumed, split by polymorph, and learned like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyscf", reason="the pseudopotentials are PySCF's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data.crystals.oxides import PRESETS, make_oxides  # noqa: E402
from pinchpoint.systems.density.data.crystals.polymorphs import polymorph  # noqa: E402
from pinchpoint.systems.density.data.dataset import make_data, open_dataset  # noqa: E402
from pinchpoint.systems.density.data.domain import valence_electrons  # noqa: E402


@pytest.fixture(scope="module")
def oxides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("oxides") / "set"
    make_oxides(folder, preset="tiny", jobs=1)
    return folder


def test_a_dataset_has_its_splits_and_whole_electron_counts(oxides: Path) -> None:
    data = open_dataset(oxides)
    assert data.names("train") == ["sio2-stishovite-000", "sio2-stishovite-001"]
    assert data.names("test") == ["sio2-stishovite-900"] and data.names("heldout") == ["sio2-quartz-000"]
    assert data.species == ("O", "Si") and not data.spin
    sample = data.sample("sio2-quartz-000")
    assert sample.molecule == "sio2-quartz"
    assert sample.electrons == pytest.approx(48, rel=1e-6)
    assert (sample.weights * sample.values).sum() == pytest.approx(48, rel=1e-3)
    assert sample.lattice is not None
    assert np.allclose(sample.lattice, polymorph("sio2-quartz").lattice)


def test_the_same_command_computes_nothing_again(oxides: Path) -> None:
    counts: list[int] = []
    before = (oxides / "index.json").read_bytes()
    (oxides / "sio2-quartz-000.npz").rename(oxides / "away")
    (oxides / "away").rename(oxides / "sio2-quartz-000.npz")
    make_oxides(oxides, preset="tiny", progress=lambda done, total: counts.append(done))
    assert counts == [4] and (oxides / "index.json").read_bytes() == before


def test_another_kind_of_dataset_is_not_continued(oxides: Path) -> None:
    with pytest.raises(BadInput, match="computed oxides, not of computed molecules"):
        make_data(oxides, preset="tiny")


def test_bad_settings_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no preset"):
        make_oxides(tmp_path / "new", preset="huge")
    with pytest.raises(BadInput, match="no file"):
        make_oxides(tmp_path / "new", preset="tiny", potentials=tmp_path / "absent")
    with pytest.raises(BadInput, match="0 probes"):
        make_oxides(tmp_path / "new", preset="tiny", probes=0)
    assert not (tmp_path / "new").exists()


def test_every_cell_of_the_presets_has_closed_shells() -> None:
    for preset in PRESETS.values():
        for name in preset.cells:
            count = valence_electrons(polymorph(name).species)
            assert count is not None and count % 2 == 0, name
