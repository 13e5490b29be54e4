"""A user's own densities as a dataset: the numbers of the files, stable splits, bad files by name, a
model trained on them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data import collect, dataset, workers
from pinchpoint.systems.density.data.collect import import_data
from pinchpoint.systems.density.data.dataset import make_data, open_dataset
from pinchpoint.systems.density.data.file_samples import unpack_file_sample
from pinchpoint.systems.density.data.sources import Source, find_files, split_files
from pinchpoint.systems.density.evaluate import evaluate
from pinchpoint.systems.density.files.formats import write_volume
from pinchpoint.systems.density.files.poscar import poscar_text

OPTIONS: dict[str, Any] = {"probes": 600, "jobs": 1}


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Samples are made in this process; their names are noted."""
    names: list[str] = []

    def made(program: object, orders: list[Any], *, jobs: int) -> Iterator[tuple[Any, bytes]]:
        for order in orders:
            names.append(order.name)
            yield order, workers.make(vars(order))

    monkeypatch.setattr(workers, "run_workers", made)
    return names


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, toy_volume: Any, toy_structure: Any) -> Path:
    """A folder of runs: CHGCARs with spin, one of them packed, a cube and an npz of other grids without."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(3):
        (folder / f"run{number}").mkdir()
        write_volume(
            folder / f"run{number}" / ("CHGCAR.gz" if number == 2 else "CHGCAR"),
            toy_volume(number, spin=True),
        )
    write_volume(folder / "three.cube", toy_volume(3, (12, 14, 13)))
    write_volume(folder / "four.npz", toy_volume(4, (10, 11, 12)))
    (folder / "run0" / "POSCAR").write_text(poscar_text(toy_structure(0), ""))
    return folder


def of(data: dataset.Dataset, label: str) -> str:
    return next(name for name in data.samples if name.startswith(f"{label}-"))


def test_samples_hold_the_numbers_of_their_files(files: Path, tmp_path: Path, toy_volume: Any) -> None:
    calls: list[tuple[int, int]] = []
    data = import_data(
        tmp_path / "data",
        [files],
        test_files=[files / "run2", files / "three.cube"],
        progress=lambda made, wanted: calls.append((made, wanted)),
        **OPTIONS,
    )
    assert calls == [(number, 5) for number in range(6)]
    assert sorted(name.rpartition("-")[0] for name in data.names("test")) == ["run2", "three"]
    assert sorted(name.rpartition("-")[0] for name in data.names("train")) == ["four", "run0", "run1"]
    assert data.names("heldout") == [] and data.species == ("Hf", "O") and not data.spin
    for number, label in enumerate(("run0", "run1", "run2", "three", "four")):
        sample = data.sample(of(data, label))
        grid = {"three": (12, 14, 13), "four": (10, 11, 12)}.get(label, (16, 15, 18))
        volume = toy_volume(number, grid, spin=True)
        assert volume.spin is not None and sample.lattice is not None
        inside = sample.probes @ np.linalg.inv(sample.lattice) * grid
        at = tuple(np.rint(inside).astype(int).T)
        assert np.abs(inside - np.rint(inside)).max() < 1e-4, "probes are grid points"
        for found, truth in ((sample.values, volume.total[at]), (sample.spin, volume.spin[at])):
            if found is not None:
                assert (np.abs(found - truth) / np.maximum(np.abs(truth), 1e-3)).max() < 2e-4
        assert (sample.spin is not None) == label.startswith("run") and sample.molecule == "Hf1 O2"
        assert np.allclose(sample.lattice, volume.lattice, atol=1e-6) and np.allclose(
            sample.positions, volume.structure.cartesian, atol=1e-6
        )
        assert sample.electrons == pytest.approx(16, abs=1e-6)
        assert len(sample.probes) == (np.prod(grid) if label in ("run2", "three") else 600)
        assert sample.weights @ sample.values == pytest.approx(
            16, rel=1e-4 if label in ("run2", "three") else 0.2
        )
    assert any("without a spin density" in note for note in data.notes)


def test_splits_follow_from_what_files_hold(files: Path, tmp_path: Path, in_place: list[str]) -> None:
    first = import_data(tmp_path / "one", [files], test=0.4, **OPTIONS)
    moved = shutil.copytree(files, tmp_path / "moved")
    (moved / "three.cube").rename(moved / "other.cube")
    second = import_data(tmp_path / "two", sorted(moved.iterdir(), reverse=True), test=0.4, **OPTIONS)
    for split in ("train", "test"):
        assert [first.samples[n]["content"] for n in first.names(split)] == [
            second.samples[n]["content"] for n in second.names(split)
        ]
    many = [Source(str(n), str(n), f"{n:064x}") for n in range(400)]
    tested = {source.path for source in split_files(many, fraction=0.1, seed=0) if source.test}
    assert 20 < len(tested) < 60
    fewer = {source.path for source in split_files(many[::2], fraction=0.1, seed=0) if source.test}
    assert fewer == {path for path in tested if int(path) % 2 == 0}, (
        "files that are added move none of the others"
    )
    assert tested != {source.path for source in split_files(many, fraction=0.1, seed=1) if source.test}
    few = split_files(many[:2], fraction=1e-6, seed=0)
    assert sorted(bool(source.test) for source in few) == [False, True]
    with pytest.raises(BadInput, match="Of 1 density file none is left to train on"):
        split_files([replace(many[0], test=True)], fraction=0.0, seed=0)


def test_a_set_is_continued_and_grows_and_changes_sides(
    files: Path, tmp_path: Path, in_place: list[str]
) -> None:
    folder = tmp_path / "data"
    import_data(folder, [files / "run0", files / "run1"], test=0.0, **OPTIONS)
    before = {file.name: file.read_bytes() for file in folder.glob("*.npz")}
    in_place.clear()
    import_data(folder, [files], test=0.0, **OPTIONS)
    assert len(in_place) == 3 and all((folder / name).read_bytes() == data for name, data in before.items())
    in_place.clear()
    (folder / "index.json").unlink()
    data = import_data(folder, [files], test_files=[files / "run0"], **OPTIONS)
    assert (
        [name.rpartition("-")[0] for name in in_place]
        == ["run0"]
        == [n.rpartition("-")[0] for n in data.names("test")]
    )
    with pytest.raises(BadInput, match="made with probes=600, not 700"):
        import_data(folder, [files], **{**OPTIONS, "probes": 700})
    with pytest.raises(BadInput, match="a dataset of your own files, not of computed molecules"):
        make_data(folder, preset="tiny")
    with pytest.raises(BadInput, match="holds 5 samples of an earlier run"):
        import_data(folder, [files], resume=False, **OPTIONS)


def test_bad_files_are_refused_by_name_once_the_others_are_taken(
    files: Path, tmp_path: Path, in_place: list[str]
) -> None:
    source = Path(shutil.copytree(files, tmp_path / "source"))
    text = (source / "run0" / "CHGCAR").read_bytes()
    (source / "run0" / "CHGCAR").write_bytes(text[:20_000])
    lines = (source / "run1" / "CHGCAR").read_text().splitlines()
    lines[20] = " NaN" + lines[20][4:]
    (source / "run1" / "CHGCAR").write_text("\n".join(lines))
    packed = (source / "run2" / "CHGCAR.gz").read_bytes()
    (source / "run2" / "CHGCAR.gz").write_bytes(packed[:-50])
    folder = tmp_path / "data"
    with pytest.raises(BadInput, match="3 of 5 files cannot be used") as caught:
        import_data(folder, [source], test=0.0, **OPTIONS)
    assert (
        all(f"run{number}" in caught.value.what for number in range(3))
        and "run the command again" in caught.value.hint
    )
    with pytest.raises(BadInput, match="not finished: 3 of 5 samples are missing"):
        open_dataset(folder)
    for number in range(3):
        shutil.copytree(files / f"run{number}", source / f"run{number}", dirs_exist_ok=True)
    in_place.clear()
    assert len(import_data(folder, [source], test=0.0, **OPTIONS).names("train")) == 5 and len(in_place) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda volume: replace(volume, total=volume.total - volume.total.mean()),
            "The integral of the density is",
        ),
        (lambda volume: replace(volume, total=-volume.total), "The integral of the density is -16 electrons"),
    ],
)
def test_what_is_no_density_is_refused(
    change: Any, says: str, tmp_path: Path, in_place: list[str], toy_volume: Any
) -> None:
    write_volume(tmp_path / "good.npz", toy_volume(0))
    write_volume(tmp_path / "bad.npz", change(toy_volume(1)))
    with pytest.raises(BadInput, match="bad.npz: " + says) as caught:
        import_data(tmp_path / "data", [tmp_path / "good.npz", tmp_path / "bad.npz"], test=0.0, **OPTIONS)
    assert "not a difference" in caught.value.hint


def test_spin_is_learnt_only_where_every_file_has_it(
    files: Path, tmp_path: Path, in_place: list[str]
) -> None:
    runs = [files / f"run{number}" for number in range(3)]
    assert import_data(tmp_path / "all", runs, **OPTIONS).spin
    mixed = import_data(tmp_path / "mixed", runs, test_files=[files / "three.cube"], **OPTIONS)
    assert not mixed.spin and "three.cube is without a spin density" in mixed.notes[0], (
        "or it could not be tested"
    )


def test_small_ripples_below_zero_are_kept(tmp_path: Path, in_place: list[str], toy_volume: Any) -> None:
    volume = toy_volume(0)
    rippled = replace(volume, total=volume.total - 2e-3)
    write_volume(tmp_path / "CHGCAR", rippled)
    data = import_data(tmp_path / "data", [tmp_path / "CHGCAR"], test=0.0, **{**OPTIONS, "probes": 10**6})
    sample = data.sample(data.names("train")[0])
    assert sample.values.min() == pytest.approx(rippled.total.min(), rel=2e-4) and sample.values.min() < 0


def test_copies_are_left_out_and_twins_are_told(
    files: Path, tmp_path: Path, in_place: list[str], toy_volume: Any
) -> None:
    source = Path(shutil.copytree(files / "run0", tmp_path / "run0"))
    shutil.copy(source / "CHGCAR", source / "CHGCAR_copy")
    twin = toy_volume(0)
    write_volume(source / "twin.vasp", replace(twin, total=twin.total * 1.001))
    data = import_data(tmp_path / "data", [source], test_files=[source / "twin.vasp"], **OPTIONS)
    assert len(data.names("train")) == len(data.names("test")) == 1
    copied, alike = data.notes[:2]
    assert "CHGCAR_copy has the same contents as" in copied and "left out" in copied
    assert "has the same structure and grid as" in alike and "--test-files" in alike
    # A copy of a file to test with is not trained on, whichever is named first.
    with pytest.raises(BadInput, match="none is left to train on"):
        import_data(tmp_path / "none", [source / "CHGCAR"], test_files=[source / "CHGCAR_copy"], **OPTIONS)


def test_a_grid_that_is_too_large_is_thinned_and_that_is_said(
    files: Path, tmp_path: Path, in_place: list[str]
) -> None:
    given = {**OPTIONS, "grid_points": 1000}
    data = import_data(tmp_path / "data", [files], test_files=[files / "run1"], **given)
    sample = data.sample(data.names("test")[0])
    assert sample.grid is None and len(sample.probes) <= 1000
    assert sample.weights @ sample.values == pytest.approx(16, rel=0.02)
    assert any("its grid of 16 x 15 x 18 points is thinned" in note for note in data.notes)


def test_folders_are_searched_but_not_data_sets_and_hidden_files(
    files: Path, tmp_path: Path, toy_volume: Any
) -> None:
    source = Path(shutil.copytree(files, tmp_path / "source"))
    (source / "data").mkdir()
    (source / "data" / "index.json").write_text("{}")
    write_volume(source / "data" / "x-1.npz", toy_volume(0))
    write_volume(source / ".hidden.npz", toy_volume(0))
    (source / "run0" / "AECCAR0").write_text("all electrons: not what a folder is searched for")
    found = find_files([source, source / "run0" / "CHGCAR"])
    assert [str(file.relative_to(source)) for file in found] == [
        "four.npz",
        "three.cube",
        "run0/CHGCAR",
        "run1/CHGCAR",
        "run2/CHGCAR.gz",
    ]
    assert len(find_files([source], besides=source / "run0")) == 4
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="empty contains no density files"):
        find_files([tmp_path / "empty"])
    (tmp_path / "notes.txt").write_text("not a density\n" * 9)
    assert find_files([tmp_path / "notes.txt"]) == [tmp_path / "notes.txt"], (
        "a named file is looked into later"
    )
    with pytest.raises(BadInput, match="There is no file"):
        find_files([tmp_path / "none.txt"])


def test_values_whose_points_cannot_be_drawn_again_are_refused(
    files: Path, tmp_path: Path, in_place: list[str]
) -> None:
    data = import_data(tmp_path / "data", [files], test=0.0, **OPTIONS)
    name = data.names("train")[0]
    made = unpack_file_sample((tmp_path / "data" / f"{name}.npz").read_bytes(), where=name)
    with pytest.raises(BadInput, match="are not the ones its values were stored for"):
        dataset.file_sample_of(replace(made, order=replace(made.order, seed=5)))
    (tmp_path / "data" / f"{name}.npz").write_bytes(b"cut")
    with pytest.raises(BadInput, match="sha256 differs from that of the index"):
        data.sample(name)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"test": 1.0}, "The test fraction 1"),
        ({"test": -0.1}, "The test fraction -0.1"),
        ({"probes": 0}, "0 probes"),
        ({"grid_points": 1}, "1 grid points"),
        ({"seed": -1}, "The seed -1"),
        ({"jobs": 0}, "--jobs 0 is out of range"),
        ({"files": []}, "No density files"),
    ],
)
def test_settings_that_make_nothing_are_refused_before_anything_is_written(
    options: dict[str, Any], says: str, files: Path, tmp_path: Path
) -> None:
    given = {"files": [files], **options}
    with pytest.raises(BadInput, match=says):
        import_data(tmp_path / "none", **given)
    assert not (tmp_path / "none").exists()


def test_folders_of_others_are_never_written_into(files: Path, tmp_path: Path, in_place: list[str]) -> None:
    for name, kind in (("config.json", "a run"), ("evaluation.json", "an evaluation")):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        for make in (
            lambda folder=folder: import_data(folder, [files], **OPTIONS),
            lambda folder=folder: make_data(folder, preset="tiny"),
        ):
            with pytest.raises(BadInput, match=f"is the folder of {kind}"):
                make()
        with pytest.raises(BadInput, match=f"is the folder of {kind}"):
            open_dataset(folder)
    for name in ("config.json", "index.json"):
        (tmp_path / "taken").mkdir(exist_ok=True)
        (tmp_path / "taken" / name).write_text("{}")
        with pytest.raises(BadInput, match="is the folder of"):
            evaluate(files / "three.cube", files / "three.cube", tmp_path / "taken")
    other = tmp_path / "cars"
    other.mkdir()
    (other / "index.json").write_text(json.dumps({"format": "pinchpoint operator data"}))
    with pytest.raises(BadInput, match="another kind of dataset: 'pinchpoint operator data'"):
        import_data(other, [files], **OPTIONS)
    assert collect.samples.INDEX == "index.json" and len(list(other.iterdir())) == 1


def test_a_model_trained_on_chgcars_writes_a_chgcar_of_a_new_geometry(
    files: Path,
    tmp_path: Path,
    in_place: list[str],
    capsys: pytest.CaptureFixture[str],
    toy_volume: Any,
    toy_structure: Any,
) -> None:
    """From files to a prediction by commands alone, the spin learnt too."""
    pytest.importorskip("torch", reason="density models are torch's")
    from pinchpoint.cli.main import run
    from pinchpoint.systems.common.training import logs
    from pinchpoint.systems.density.files.formats import read_volume
    from pinchpoint.systems.density.model.config import DensityConfig

    data, folder, record = tmp_path / "data", tmp_path / "run", tmp_path / "scores.json"
    runs = [str(files / f"run{number}") for number in range(3)]
    command = ["density", "data", "-o", str(data), "--from", *runs[:2], runs[2] + "/CHGCAR.gz"]
    assert run([*command, "--test-files", runs[1], "--probes", "1500", "--jobs", "1"]) == 0
    assert "2 train, 1 test, 0 heldout" in capsys.readouterr().out
    model = [
        part
        for key in (
            "mul=16",
            "lmax=1",
            "gaussians=10",
            "hidden=16",
            "head=16",
            "interactions=2",
            "train_knots=64",
        )
        for part in ("--set", key)
    ]
    steps = [
        "--steps",
        "40",
        "--molecules",
        "2",
        "--probes",
        "128",
        "--lr",
        "0.03",
        "--set",
        "ema=0",
        "--device",
        "cpu",
    ]
    assert run(["density", "train", str(data), "-o", str(folder), *steps, *model]) == 0
    losses = [row.loss for row in logs.read(folder / "log.csv")]
    # The toy's Gaussians are far from the packaged atoms that the model starts with.
    assert losses[0] > 0.5 and np.mean(losses[-5:]) < 0.6 * losses[0]
    config = DensityConfig.from_json(json.dumps(json.loads((folder / "config.json").read_text())["model"]))
    assert config.spin and config.prior and config.species == ("Hf", "O")
    assert run(["density", "score", str(folder), str(data), "--device", "cpu", "-o", str(record)]) == 0
    made = json.loads(record.read_text())
    assert made["nmae"] < 0.6 and made["spin_nmae"] < 1 and made["superposition"] > made["nmae"]
    assert "superposed" in capsys.readouterr().out
    (tmp_path / "POSCAR").write_text(poscar_text(toy_structure(9), "new"))
    out = tmp_path / "CHGCAR"
    asked = ["--grid", "16,15,18", "--weights", str(folder), "--device", "cpu"]
    assert run(["density", "predict", str(tmp_path / "POSCAR"), "-o", str(out), *asked]) == 0
    told, truth = read_volume(out), toy_volume(9, spin=True)
    assert told.spin is not None and truth.spin is not None
    assert np.abs(told.total - truth.total).sum() < 0.6 * truth.total.sum()
    assert np.abs(told.spin - truth.spin).sum() < np.abs(truth.spin).sum()
