"""Datasets of densities: the same bytes for any number of jobs, continued, checked, and refused when
damaged.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput, Missing, TargetFailed, from_dict
from pinchpoint.systems.common.data import dataset_folder
from pinchpoint.systems.common.data import workers as common_workers
from pinchpoint.systems.density.data import dataset as dataset_module
from pinchpoint.systems.density.data import sample as sample_module
from pinchpoint.systems.density.data import workers
from pinchpoint.systems.density.data.data_settings import PRESETS, DataSettings, check_settings, orders_of
from pinchpoint.systems.density.data.dataset import make_data, open_dataset
from pinchpoint.systems.density.data.quantum import solve
from pinchpoint.systems.density.data.sample import decode, encode, make_sample, pack, sample_of, unpack
from pinchpoint.systems.density.data.workers import PROGRAM

pytest.importorskip("pyscf", reason="densities are computed with PySCF")
TINY = orders_of(PRESETS["tiny"], 0)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """PySCF's threads wait for each other by spinning: on a busy machine two are ten times slower than
    one.
    """
    lib = pytest.importorskip("pyscf.lib", reason="densities are computed with PySCF")
    with lib.with_omp_threads(1):
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One dataset made with one job; a test that changes it takes a copy."""
    folder = tmp_path_factory.mktemp("data") / "new" / "tiny"
    calls: list[tuple[int, int]] = []
    make_data(folder, preset="tiny", jobs=1, progress=lambda done, wanted: calls.append((done, wanted)))
    return folder, calls


@pytest.fixture
def copy(made, tmp_path):
    return Path(shutil.copytree(made[0], tmp_path / "copy"))


@pytest.fixture
def asked(monkeypatch, made):
    """Samples are taken from the first dataset where it has them, without new processes; their names are
    noted.
    """
    names: list[str] = []

    def taken(program, orders, *, jobs):
        for order in orders:
            names.append(order.name)
            file = made[0] / f"{order.name}.npz"
            yield order, file.read_bytes() if file.exists() else pack(make_sample(order))

    monkeypatch.setattr(dataset_folder, "run_workers", taken)
    return names


def bytes_of(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_the_bytes_do_not_depend_on_the_number_of_jobs(made, tmp_path):
    make_data(tmp_path, preset="tiny", jobs=2)
    assert bytes_of(tmp_path) == bytes_of(made[0])


def test_progress_counts_every_sample(made):
    assert made[1] == [(n, 7) for n in range(8)]


def test_samples_hold_the_density_of_their_geometry(made):
    data = open_dataset(made[0])
    assert data.names("train") == ["water-000000", "methane-000000", "water-000001", "methane-000001"]
    assert data.names("test") == ["water-900000", "methane-900000"] and data.names("heldout") == [
        "methanol-900000"
    ]
    assert data.species == ("C", "H", "O") and not data.faulty_samples()
    for name, count in (("methane-000001", 500), ("water-900000", None)):
        sample = data.sample(name)
        truth = solve(sample.species, sample.positions, level=0).density(sample.probes)
        assert np.abs(sample.values - truth).max() <= 1e-4 * truth.max()
        assert np.abs(sample.values - truth).sum() <= 1e-4 * truth.sum()
        assert sample.values.dtype == np.float32 and sample.probes.dtype == sample.weights.dtype == np.float64
        assert sample.electrons == 8 and sample.lattice is None and sample.spin is None
        assert (sample.grid is None) == (count is not None) and len(sample.probes) == (
            count or np.prod(sample.grid)  # pyright: ignore[reportCallIssue, reportArgumentType]
        )
    grid = data.sample("water-900000")
    assert float(grid.weights @ grid.values) == pytest.approx(8, rel=5e-3)
    assert data.samples["water-000000"]["quality"]["integral_error"] > 0


def test_training_and_test_geometries_differ(made):
    data = open_dataset(made[0])
    places = [data.stored(name).positions for name in ("water-000000", "water-000001", "water-900000")]
    apart = [np.sort(np.linalg.norm(x[:, None] - x, axis=2).ravel()) for x in places]
    assert np.abs(apart[0] - apart[1]).max() > 1e-3 and np.abs(apart[0] - apart[2]).max() > 1e-3


def test_only_missing_and_damaged_samples_are_made_again(made, copy, asked):
    (copy / "water-000001.npz").unlink()
    (copy / "methanol-900000.npz").write_bytes(b"not a sample")
    (copy / "index.json").write_text("{")
    data = make_data(copy, preset="tiny")
    assert sorted(asked) == ["methanol-900000", "water-000001"] and bytes_of(copy) == bytes_of(made[0])
    assert data.sha256 == open_dataset(made[0]).sha256


def test_a_set_can_grow_and_keeps_what_it_has(copy, asked):
    data = make_data(copy, preset="tiny", geometries=3, molecules=("water",))
    assert asked == ["water-000002"] and data.names("train") == [f"water-{n:06d}" for n in range(3)]


def test_a_run_that_was_stopped_is_continued(made, tmp_path, asked):
    def stop(done, wanted):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_data(tmp_path, preset="tiny", progress=stop)
    with pytest.raises(BadInput, match="not finished: 4 of 7 samples are missing"):
        open_dataset(tmp_path)
    asked.clear()
    make_data(tmp_path, preset="tiny")
    assert len(asked) == 4 and bytes_of(tmp_path) == bytes_of(made[0])


def test_another_set_in_the_folder_is_never_written_over(copy, asked):
    for changed in ({"seed": 1}, {"probes": 501}, {"spacing_a": 0.31}, {"rattle_a": 0.05}):
        with pytest.raises(BadInput, match=f"made with {next(iter(changed))}="):
            make_data(copy, preset="tiny", **changed)  # pyright: ignore[reportArgumentType]
    (copy / "index.json").unlink()
    with pytest.raises(BadInput, match="made with seed=0, not 1"):
        make_data(copy, preset="tiny", seed=1)
    with pytest.raises(BadInput, match="holds 7 samples of an earlier run"):
        make_data(copy, preset="tiny", resume=False)
    assert not asked


def test_a_changed_file_is_refused_when_it_is_read(copy):
    other = (copy / "water-000001.npz").read_bytes()
    (copy / "water-000000.npz").write_bytes(other)
    with pytest.raises(BadInput, match="sha256 differs from that of the index"):
        open_dataset(copy).sample("water-000000")
    assert open_dataset(copy, check=False).sample("water-000000").name == "water-000001"
    (copy / "water-000000.npz").unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        open_dataset(copy).sample("water-000000")


def test_a_file_whose_values_were_changed_is_no_sample(made):
    data = (made[0] / "water-000000.npz").read_bytes()
    held = unpack(data, where="here")
    codes = held.codes.copy()
    codes[3] += 1
    with np.load(io.BytesIO(data)) as file:
        about = file["about"]
    changed = io.BytesIO()
    np.savez(changed, positions=held.positions, codes=codes, about=about)
    with pytest.raises(BadInput, match="here is not a sample of a dataset: its sha256"):
        unpack(changed.getvalue(), where="here")
    with pytest.raises(BadInput, match="has 499 values for 500 probes"):
        sample_of(replace(held, codes=held.codes[:-1]))


def test_codes_are_right_to_one_part_in_ten_thousand():
    values = np.concatenate([np.geomspace(1e-3, 9.0, 200_000), np.linspace(0, 1e-3, 1000)])
    back = decode(encode(values, 9.0), 9.0)
    assert (np.abs(back - values) / np.maximum(values, 1e-3)).max() <= 1e-4
    assert back[199_999] == pytest.approx(9.0) and decode(encode(np.zeros(1), 9.0), 9.0)[0] == 0


def test_a_geometry_that_does_not_converge_is_drawn_again_and_noted(monkeypatch):
    order = replace(TINY[0], name="water-000009", number=9, kind="probes")
    first = make_sample(order)
    calls = []

    def fails_once(*args, **options):
        calls.append(args)
        return replace(solve(*args, **options), converged=len(calls) > 1)

    monkeypatch.setattr(sample_module, "solve", fails_once)
    again = make_sample(order)
    assert (first.attempts, again.attempts) == (1, 2) and not again.faults
    assert np.abs(first.positions - again.positions).max() > 1e-3
    monkeypatch.setattr(
        sample_module, "solve", lambda *args, **options: replace(solve(*args, **options), converged=False)
    )
    never = make_sample(order)
    assert never.faults == ("3 geometries did not converge",) and len(never.codes) == 0


def test_a_sample_with_faults_is_left_out_of_the_splits(monkeypatch, tmp_path, asked):
    monkeypatch.setattr(sample_module, "GRID_LIMIT", 1e-9)
    data = make_data(tmp_path, molecules=("water",), heldout=(), preset="tiny", tests=2, geometries=1)
    assert data.names("test") == ["water-900000"] and list(data.faulty_samples()) == ["water-900001"]
    assert "electrons" in data.faulty_samples()["water-900001"][0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "huge"}, "no preset 'huge'"),
        ({"molecules": ("caffeine",)}, "no molecule 'caffeine'"),
        ({"heldout": ("water",)}, "water cannot be both training and held-out molecules"),
        ({"geometries": -1}, "A dataset with geometries -1"),
        ({"geometries": 0, "tests": 0, "heldout_geometries": 0}, "A dataset with geometries 0"),
        ({"geometries": 0}, "nothing to train on"),
        ({"probes": 0}, "0 probes"),
        ({"spacing_a": 0.0}, "spacing 0"),
        ({"rattle_a": float("nan")}, "rattle nan"),
        ({"seed": -1}, "The seed -1"),
        ({"jobs": 0}, "--jobs 0 is out of range"),
    ],
)
def test_settings_that_make_nothing_are_refused_before_anything_is_written(settings, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        make_data(tmp_path / "none", **{"preset": "tiny"} | settings)
    assert not (tmp_path / "none").exists()


def test_folders_names_and_splits_that_are_not_there_are_refused(made, tmp_path):
    with pytest.raises(BadInput, match="holds no dataset"):
        open_dataset(tmp_path)
    data = open_dataset(made[0])
    with pytest.raises(BadInput, match="no sample 'water-000007'"):
        data.sample("water-000007")
    with pytest.raises(BadInput, match="no split 'valid'"):
        data.names("valid")  # pyright: ignore[reportArgumentType]
    (tmp_path / "index.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(BadInput, match="is damaged: it is not the index"):
        open_dataset(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps({"format": "pinchpoint density data", "missing": 0}))
    with pytest.raises(BadInput, match="is damaged: it lacks 'seed'"):
        open_dataset(tmp_path)


def test_without_pyscf_a_finished_set_is_still_read(made, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyscf", None)
    assert make_data(made[0], preset="tiny").sample("water-000000").electrons == 8
    with pytest.raises(Missing, match="PySCF"):
        make_data(tmp_path, preset="tiny")


def test_an_error_in_a_process_comes_back_with_its_hint():
    answers = io.BytesIO()
    common_workers.serve(
        io.BytesIO(json.dumps(vars(TINY[0]) | {"molecule": "caffeine"}).encode()), answers, workers.make
    )
    error = from_dict(json.loads(answers.getvalue()))
    assert isinstance(error, BadInput) and "caffeine" in error.what and "molecules.py" in error.hint


def test_a_process_that_dies_is_told_with_the_sample(monkeypatch, tmp_path):
    monkeypatch.setattr(common_workers, "SOURCE", tmp_path)
    package = tmp_path / "pinchpoint" / "systems" / "density" / "data"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:3]):
        (folder / "__init__.py").write_text("")
    (package / "workers.py").write_text("import sys; sys.stdin.readline(); sys.exit('no room')")
    with pytest.raises(TargetFailed, match=r"ended: no room \(water-900000\)"):
        list(common_workers.run_workers(PROGRAM, TINY[:1], jobs=1))


def test_the_default_set_is_within_its_size():
    # 16-bit codes dominate: 20,000 a training sample, about 45,000 a grid; the finished set was 23.5 MiB.
    orders = orders_of(PRESETS["default"], 0)
    train = [order for order in orders if order.kind == "probes"]
    assert 2 * sum(order.probes for order in train) + 2 * 60_000 * (len(orders) - len(train)) < 30 * 2**20


def test_the_wider_set_has_one_geometry_of_each_enumerated_molecule_before_more_of_the_others(
    tmp_path,
):
    wide, wider = PRESETS["wide"], PRESETS["wider"]
    orders = orders_of(check_settings(wider), 0)
    named, single = len(wide.molecules), len(wider.singles)
    assert [order.kind for order in orders[:50]] == ["grid"] * 50
    first, then = orders[50 : 50 + named + single], orders[50 + named + single :]
    assert [order.molecule for order in first] == [*wide.molecules, *wider.singles]
    assert {order.number for order in first} == {0} and {order.number for order in then} == {1, 2, 3}
    # All samples of the set `wide` are samples of this one, so the folder can grow.
    assert {order.name: order for order in orders}.items() >= {
        order.name: order for order in orders_of(wide, 0)
    }.items()
    # The last training samples validate a run: they are of molecules with one geometry.
    samples = {
        "water-000000": {"faults": []},
        "C2H3N-1-000000": {"faults": []},
        "water-000001": {"faults": []},
    }
    dataset_module._save(tmp_path, {"format": "x"}, wider, samples, {order.name: order for order in orders})
    index = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))
    assert index["splits"]["train"] == ["water-000000", "water-000001", "C2H3N-1-000000"]
    old = {key: value for key, value in asdict(wide).items() if key != "singles"}
    assert DataSettings.from_json(json.loads(json.dumps(old))) == wide
    with pytest.raises(BadInput, match="both training and held-out"):
        check_settings(replace(wider, heldout=wider.singles[:1]))
