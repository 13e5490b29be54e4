"""The packaged weights for oxides: picked for HfO2, and as accurate on stored densities as the docs say."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data.batches import item_of  # noqa: E402
from pinchpoint.systems.density.data.crystals.oxides import PRESETS  # noqa: E402
from pinchpoint.systems.density.data.crystals.polymorphs import draw_cell  # noqa: E402
from pinchpoint.systems.density.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.density.files.formats import read_volume  # noqa: E402
from pinchpoint.systems.density.files.poscar import poscar_text  # noqa: E402
from pinchpoint.systems.density.grid.hafnia import hafnia  # noqa: E402
from pinchpoint.systems.density.grid.structure import Structure  # noqa: E402
from pinchpoint.systems.density.predict import predict  # noqa: E402
from pinchpoint.systems.density.training.training_step import nmae, values_at  # noqa: E402
from pinchpoint.systems.density.training.weights import load_weights  # noqa: E402

ROOT = Path(__file__).parents[3]
PROBES = 1500  # of a stored grid, drawn at random


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    for name in ("oxides.tar", "oxides_mg.tar"):
        with tarfile.open(ROOT / "benchmarks" / "density" / name) as archive:
            archive.extractall(folder, filter="data")
    return folder / "oxides"


def test_hfo2_is_predicted_without_naming_weights(tmp_path: Path) -> None:
    path = tmp_path / "POSCAR"
    path.write_text(poscar_text(hafnia(), "HfO2"))
    result = predict(path, output=tmp_path / "CHGCAR", spacing_a=0.25, device="cpu")
    assert result.electrons_neutral == 4 * 12 + 8 * 6
    assert result.electrons_raw == pytest.approx(96, rel=0.01)
    assert read_volume(tmp_path / "CHGCAR").electrons == pytest.approx(result.electrons_raw, rel=1e-6)


def test_a_species_outside_is_refused_with_the_ones_covered() -> None:
    salt = Structure(4.0 * np.eye(3), ("Na", "O"), np.array([[0.0, 0, 0], [0.5, 0.5, 0.5]]))
    with pytest.raises(BadInput, match=r"do not cover Na, O .* oxides: Al, Ca, Hf, Mg, O, Si, Ti, Zn, Zr"):
        predict(salt, spacing_a=0.5, device="cpu")


@pytest.mark.parametrize(
    ("name", "most"),
    [("hfo2-monoclinic-900", 0.01), ("hfo2-cubic-000", 0.02), ("hfo2-orthorhombic-900", 0.02)],
)
def test_stored_densities_are_met(name: str, most: float, stored: Path) -> None:
    model, sample = load_weights("oxides"), open_dataset(stored).sample(name)
    item = item_of(sample, model.config)
    some = torch.from_numpy(np.random.default_rng(0).permutation(len(item.probes))[:PROBES])
    item = replace(item, probes=item.probes[some], values=item.values[some], weights=item.weights[some])
    assert nmae(values_at(model, item), item) < most


def test_the_stored_cells_are_those_of_the_generator(stored: Path) -> None:
    data = open_dataset(stored)
    counts = PRESETS["default"].cells.values()
    assert len(data.names("train")) == sum(count.train for count in counts)
    assert len(data.names("test")) + len(data.names("heldout")) == sum(count.test for count in counts)
    sample, cell = data.sample("tio2-rutile-900"), draw_cell("tio2-rutile", seed=0, number=900)
    assert np.allclose(sample.positions, cell.cartesian) and sample.species == cell.species
    about = json.loads((ROOT / "src/pinchpoint/systems/density/model/packaged/oxides.json").read_text())
    assert about["seen"]["structures"] <= len(data.names("train")) and about["seen"]["periodic"]
