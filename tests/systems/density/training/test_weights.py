"""Weights: a file gives the model of its run, what is damaged is refused, and those of the package work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.common.training.checkpoints import Checkpoints  # noqa: E402
from pinchpoint.systems.density.data.batches import item_of  # noqa: E402
from pinchpoint.systems.density.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.density.data.molecules import molecule  # noqa: E402
from pinchpoint.systems.density.data.probes import grid_probes  # noqa: E402
from pinchpoint.systems.density.data.sample import Sample  # noqa: E402
from pinchpoint.systems.density.train import train  # noqa: E402
from pinchpoint.systems.density.training.training_step import values_at  # noqa: E402
from pinchpoint.systems.density.training.weights import (  # noqa: E402
    PACKAGED,
    export,
    load_weights,
    packaged_for,
    packaged_species,
)

TINY = {"mul": 8, "lmax": 1, "gaussians": 6, "hidden": 8, "head": 8, "interactions": 2, "train_knots": 64}


@pytest.fixture(scope="module")
def run(density_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "run"
    train(
        density_data, folder, steps=4, molecules=2, probes=16, validation=1, ema=0.9, device="cpu", model=TINY
    )
    return folder


def values(model: Any, data: Path) -> Any:
    opened = open_dataset(data)
    return values_at(model, item_of(opened.sample(opened.names("train")[0]), model.config))


def test_a_file_gives_the_averaged_model_of_the_best_checkpoint(
    run: Path, density_data: Path, tmp_path: Path
) -> None:
    made = Checkpoints(run / "checkpoints")
    best = made.best()
    assert best is not None
    state = made.load(best)
    file = export(run, tmp_path / "mine.pt", about={"data": "two molecules"})
    model = load_weights(file)
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, state["ema"][name]), name
    assert torch.equal(values(model, density_data), values(load_weights(run), density_data))
    told = json.loads((tmp_path / "mine.json").read_text(encoding="utf-8"))
    assert told["data"] == "two molecules" and told["step"] == best.step and told["config"]["mul"] == 8
    assert told["held_back_nmae"] == best.score


def test_half_the_bytes_change_densities_by_little(run: Path, density_data: Path, tmp_path: Path) -> None:
    one, other = (export(run, tmp_path / f"{half}.pt", half=half) for half in (False, True))
    assert other.stat().st_size < one.stat().st_size
    found, wanted = (values(load_weights(file), density_data) for file in (other, one))
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-3


@pytest.mark.parametrize("harm", ["cut", "text", "other", "missing"])
def test_what_holds_no_weights_is_refused(run: Path, tmp_path: Path, harm: str) -> None:
    file = export(run, tmp_path / "mine.pt")
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    elif harm == "text":
        file.write_text("weights", encoding="utf-8")
    elif harm == "other":
        torch.save({"format": "mine"}, file)
    else:
        file.unlink()
    with pytest.raises(BadInput, match=r"mine\.pt") as caught:
        load_weights(file)
    assert "Give the folder of a run" in caught.value.hint
    assert len(caught.value.what) < len(str(file)) + 60, (
        "torch's own words are long, and advise to run what is in the file"
    )


def test_a_file_that_cannot_be_written_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Cannot write"):
        export(run, tmp_path / "nowhere" / "mine.pt")
    with pytest.raises(BadInput, match="its JSON would overwrite them"):
        export(run, tmp_path / "mine.json")
    assert not list(tmp_path.iterdir())


def test_the_packaged_weights_count_the_electrons_of_a_molecule_they_saw() -> None:
    assert PACKAGED.stat().st_size < 3e6
    model = load_weights()
    known = molecule("methane")  # soft enough to be counted on a coarse grid
    probes = grid_probes(known.positions, spacing_a=0.25, padding_a=3.0)
    nothing = np.zeros(len(probes.points), np.float32)
    sample = Sample(
        "methane",
        "methane",
        known.species,
        known.positions,
        None,
        probes.points,
        nothing,
        probes.weights,
        8.0,
    )
    found = values_at(model, item_of(sample, model.config))[:, 0]
    assert float((found.double() * torch.from_numpy(probes.weights)).sum()) == pytest.approx(8.0, rel=2e-3)
    about = json.loads(PACKAGED.with_suffix(".json").read_text(encoding="utf-8"))
    assert (
        about["heldout_nmae"] < 0.1 * about["heldout_superposition"]
        and about["seed"] >= 0
        and about["data_sha256"]
    )


def test_packaged_weights_are_picked_by_species() -> None:
    covered = packaged_species()
    assert set(covered["molecules"]) == {"H", "C", "N", "O"}
    assert packaged_for(("O", "H", "H")) == PACKAGED
    assert packaged_for(("O",)).stem == min(covered, key=lambda name: len(covered[name]))
    with pytest.raises(BadInput, match=r"cover O, Pu together; they cover .*molecules: C, H, N, O") as caught:
        packaged_for(("Pu", "O"))
    assert "--weights" in caught.value.hint
    assert load_weights("molecules").config == load_weights(PACKAGED).config


def test_a_file_of_the_same_name_goes_before_packaged_weights(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    export(run, "molecules")
    assert load_weights("molecules").config.mul == TINY["mul"]


def test_a_dataset_of_the_same_name_does_not_go_before_packaged_weights(
    density_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "oxides").symlink_to(density_data)  # `density score oxides oxides`: weights, then data
    assert "Hf" in load_weights("oxides").config.species


def test_each_packaged_file_has_the_species_of_its_json_and_all_stay_small() -> None:
    for name, species in packaged_species().items():
        assert load_weights(name).config.species == species
    assert sum(file.stat().st_size for file in PACKAGED.parent.iterdir()) < 5e6
