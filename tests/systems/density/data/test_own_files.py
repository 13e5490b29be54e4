"""Scattered probes, JSON and mixed structures as training data; bad files are left out on request."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data import workers
from pinchpoint.systems.density.data.collect import import_data
from pinchpoint.systems.density.data.dataset import Dataset, open_dataset
from pinchpoint.systems.density.data.sources import find_files
from pinchpoint.systems.density.files.formats import read_volume, write_volume

OPTIONS: dict[str, Any] = {"probes": 300, "jobs": 1}
WATER = np.array([[0.0, 0.0, 0.1173], [0.0, 0.7572, -0.4692], [0.0, -0.7572, -0.4692]])


@pytest.fixture(autouse=True)
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are made in this process."""

    def made(program: object, orders: list[Any], *, jobs: int) -> Iterator[tuple[Any, bytes]]:
        for order in orders:
            yield order, workers.make(vars(order))

    monkeypatch.setattr(workers, "run_workers", made)


def density(at: np.ndarray) -> np.ndarray:
    """8 electrons: a Gaussian of unit width around the oxygen atom of water."""
    return 8 * np.exp(-((at - WATER[0]) ** 2).sum(axis=1) / 2) / (2 * np.pi) ** 1.5


def water(count: int = 4000, seed: int = 0) -> dict[str, Any]:
    """Probes drawn from a normal distribution of width 1.3, with the weights that follow from it."""
    away = np.random.default_rng(seed).normal(size=(count, 3)) * 1.3
    chance = np.exp(-(away**2).sum(axis=1) / (2 * 1.3**2)) / (2 * np.pi * 1.3**2) ** 1.5
    probes = WATER[0] + away
    return {
        "species": np.array(["O", "H", "H"]),
        "positions": WATER,
        "probes": probes,
        "values": density(probes),
        "weights": 1 / (count * chance),
        "electrons": 8.0,
    }


def one(folder: Path, arrays: dict[str, Any], name: str = "water.npz") -> Path:
    np.savez(folder / name, **arrays)
    return folder / name


def crystal_probes(volume: Any, count: int = 2000) -> dict[str, Any]:
    """Random points of a volume's grid, evenly spread: no weights are needed."""
    which = np.random.default_rng(1).choice(volume.total.size, count, replace=False)
    at = np.stack(np.unravel_index(which, volume.grid), axis=1) / np.array(volume.grid)
    return {
        "species": np.array([72, 8, 8]),  # atomic numbers
        "lattice": volume.lattice,
        "positions": volume.positions,
        "probes": at @ volume.lattice,
        "values": volume.total.reshape(-1)[which],
    }


def only(data: Dataset, split: Any = "train") -> Any:
    return data.sample(data.names(split)[0])


def test_scattered_probes_of_a_molecule_are_a_sample_of_their_numbers(tmp_path: Path) -> None:
    path = one(tmp_path, water())
    data = import_data(tmp_path / "data", [path], test=0.0, **OPTIONS)
    sample = only(data)
    assert sample.lattice is None and sample.species == ("O", "H", "H") and len(sample.probes) == 300
    shift = sample.positions[0] - WATER[0]
    np.testing.assert_allclose(sample.positions - shift, WATER, atol=1e-6)
    np.testing.assert_allclose(sample.values, density(sample.probes - shift), rtol=1e-3, atol=1e-6)
    assert sample.electrons == 8 and sample.weights @ sample.values == pytest.approx(8, rel=0.2)
    both = import_data(
        tmp_path / "both", [path], test_files=[one(tmp_path, water(seed=1), "b.npz")], **OPTIONS
    )
    tested = only(both, "test")
    assert len(tested.probes) == 4000 and tested.weights @ tested.values == pytest.approx(8, rel=0.05)
    assert open_dataset(tmp_path / "data").species == ("H", "O")


def test_hdf5_and_npz_give_the_same_sample(tmp_path: Path, toy_volume: Any) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    arrays = crystal_probes(toy_volume(0))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for key, value in arrays.items():
            file[key] = value
    one(tmp_path, arrays, "a.npz")
    samples = [
        only(import_data(tmp_path / kind, [tmp_path / f"a.{kind}"], test=0.0, **{**OPTIONS, "probes": 2000}))
        for kind in ("h5", "npz")
    ]
    for sample in samples:
        assert sample.species == ("Hf", "O", "O") and sample.lattice is not None
        assert sample.electrons == pytest.approx(16, rel=0.1)  # an estimate, as none was given
    order = [np.lexsort(sample.probes.T) for sample in samples]
    np.testing.assert_array_equal(samples[0].values[order[0]], samples[1].values[order[1]])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"values": None}, "has no values"),
        ({"probes": np.zeros((5, 3))}, "`values` has the shape 4000, but 5 is expected"),
        ({"probes": np.zeros((4000, 2))}, "`probes` has the shape 4000 x 2"),
        ({"positions": WATER[:2]}, "`positions` has the shape 2 x 3, but 3 x 3 is expected"),
        ({"values": np.full(4000, np.nan)}, "number 1 of `values` is nan"),
        ({"values": np.array(["x"] * 4000)}, "`values` does not hold numbers"),
        ({"values": np.full(4000, 0.1)}, "weighted sum|same at all"),
        ({"weights": None}, "neither a lattice nor weights"),
        ({"weights": np.zeros(4000)}, "probe 1 has a weight that is not above 0"),
        ({"electrons": 80.0}, "weighted sum of the values is"),
        ({"electrons": -1.0}, "-1 electrons"),
        ({"species": np.array(["O", "H", "Xx"])}, "unknown species 'Xx'"),
        ({"species": np.array([8, 1, 0])}, "atomic number 0"),
        ({"positions": WATER * 0}, "angstrom apart"),
    ],
)
def test_probes_that_are_no_density_are_refused_and_nothing_is_left(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    arrays = {key: value for key, value in (water() | change).items() if value is not None}
    path = one(tmp_path, arrays)
    with pytest.raises(BadInput, match=says) as caught:
        import_data(tmp_path / "data", [path], test=0.0, **OPTIONS)
    assert str(path) in caught.value.what and caught.value.hint
    assert not list((tmp_path / "data").glob("*.npz"))


def test_a_constant_density_and_probes_given_as_a_grid_are_refused(tmp_path: Path, toy_volume: Any) -> None:
    arrays = crystal_probes(toy_volume(0))
    flat = one(tmp_path, arrays | {"values": np.full(2000, 0.5)}, "flat.npz")
    with pytest.raises(BadInput, match="the same at all 2,000 points"):
        import_data(tmp_path / "data", [flat], test=0.0, **OPTIONS)
    with pytest.raises(BadInput, match="holds scattered probes, not a grid"):
        read_volume(flat)


def test_bad_files_are_left_out_on_request_and_train_says_how(tmp_path: Path, toy_volume: Any) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(4):
        write_volume(source / f"{number}.npz", toy_volume(number))
    (source / "cut.cube").write_text("cut\noff\n")
    (source / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    (source / "bad.cube.gz").write_bytes(gzip.compress(b"x" * 999)[:-20])
    folder = tmp_path / "data"
    with pytest.raises(BadInput, match="3 of 7 files cannot be used") as caught:
        import_data(folder, [source], test=0.3, **OPTIONS)
    assert "--skip-bad" in caught.value.hint
    with pytest.raises(BadInput, match="not finished: 3 of 7 samples are missing") as caught:
        open_dataset(folder)
    assert "--skip-bad" in caught.value.hint and "bad.cube.gz cannot be decompressed" in caught.value.hint
    data = import_data(folder, [source], test=0.3, skip_bad=True, **OPTIONS)
    assert len(data.names("train")) + len(data.names("test")) == 4 and data.names("test")
    for name in ("cut.cube", "broken.npz", "bad.cube.gz"):
        assert sum(f"{name} is left out: " in note for note in data.notes) == 1
    assert open_dataset(folder).notes == data.notes
    again = import_data(folder, [source], test=0.3, skip_bad=True, **OPTIONS)
    assert again.sha256 == data.sha256
    with pytest.raises(BadInput, match=r"cut\.cube") as caught:
        import_data(tmp_path / "none", [source / "cut.cube"], skip_bad=True, **OPTIONS)
    assert "No file can be used" in caught.value.hint and "--skip-bad" not in caught.value.hint


def test_without_its_only_good_test_file_a_set_is_split_again(tmp_path: Path, toy_volume: Any) -> None:
    paths = [write_volume(tmp_path / f"{number}.npz", toy_volume(number)) for number in range(3)]
    bad = tmp_path / "bad.cube"
    bad.write_text("cut\noff\n")
    data = import_data(tmp_path / "data", [*paths, bad], test=1e-9, skip_bad=True, **OPTIONS)
    assert len(data.names("test")) == 1 and len(data.names("train")) == 2


def test_folders_are_searched_for_json_and_probes_but_not_for_other_json(
    tmp_path: Path, toy_volume: Any
) -> None:
    (tmp_path / "settings.json").write_text('{"total": 3}')
    (tmp_path / "structure.json").write_text(json.dumps({"lattice": {}, "sites": []}))
    (tmp_path / "density.json").write_text(json.dumps({"sites": [], "data": {"total": []}}))
    (tmp_path / "POSCAR.vasp").write_text("MgO\n1\n4 0 0\n0 4 0\n0 0 4\nMg O\n1 1\nDirect\n0 0 0\n.5 .5 .5\n")
    write_volume(tmp_path / "CHGCAR.vasp.xz", toy_volume(0))
    one(tmp_path, water())
    names = {path.name for path in find_files([tmp_path])}
    assert names == {"density.json", "CHGCAR.vasp.xz", "water.npz"}


def test_one_set_may_mix_cells_species_crystals_and_molecules(
    tmp_path: Path, toy_volume: Any, crystal: Any, draw: Any
) -> None:
    torch = pytest.importorskip("torch", reason="density models are torch's")
    from pinchpoint.systems.density.predict import predict
    from pinchpoint.systems.density.scores import evaluate_set
    from pinchpoint.systems.density.train import train

    write_volume(tmp_path / "CHGCAR_hafnia", toy_volume(0))
    write_volume(tmp_path / "other.cube", draw(1, (8, 9, 10)))
    write_volume(tmp_path / "third.npz", toy_volume(2, (12, 14, 13)))
    paths = [tmp_path / name for name in ("CHGCAR_hafnia", "other.cube", "third.npz")]
    data = import_data(tmp_path / "data", [*paths, one(tmp_path, water())], test=0.0, **OPTIONS)
    assert data.species == ("H", "Hf", "O") and len(data.names("train")) == 4
    model = {"mul": 8, "lmax": 1, "gaussians": 6, "hidden": 8, "head": 8, "interactions": 1}
    record = train(
        tmp_path / "data",
        tmp_path / "run",
        model=model,
        steps=3,
        molecules=4,
        probes=16,
        validation=0,
        device="cpu",
    )
    assert record.complete and record.loss is not None and np.isfinite(record.loss)
    scores = evaluate_set(tmp_path / "run", data, "train", device="cpu")
    assert len(scores.samples) == 4 and np.isfinite(scores.nmae)
    result = predict(paths[0], weights=tmp_path / "run", grid=4, device="cpu")
    assert torch.isfinite(torch.from_numpy(result.volume.total)).all()
