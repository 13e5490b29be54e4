"""Datasets on disk: the same bytes for any number of jobs, resumed, checked, and refused when damaged."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.core.errors import BadInput, Missing, TargetFailed, from_dict  # noqa: E402
from pinchpoint.systems.common.data import dataset_folder as folder_module  # noqa: E402
from pinchpoint.systems.common.data import workers as common_workers  # noqa: E402
from pinchpoint.systems.common.data.workers import run_workers  # noqa: E402
from pinchpoint.systems.operator.data import body as body_module  # noqa: E402
from pinchpoint.systems.operator.data import workers  # noqa: E402
from pinchpoint.systems.operator.data.body import Body, make_body, pack, unpack  # noqa: E402
from pinchpoint.systems.operator.data.cars import draw_car  # noqa: E402
from pinchpoint.systems.operator.data.dataset import make_dataset, open_dataset  # noqa: E402
from pinchpoint.systems.operator.data.flow import onset, solve_flow  # noqa: E402
from pinchpoint.systems.operator.data.surface import facets, smooth_normals  # noqa: E402
from pinchpoint.systems.operator.data.workers import PROGRAM, Order  # noqa: E402

SETTINGS = {"kind": "flow", "train": 3, "test": 2, "panels": 200}


@pytest.fixture(scope="module")
def small_dataset(tmp_path_factory):
    """A dataset created by one worker process, and its progress; tests that change it use a copy."""
    folder = tmp_path_factory.mktemp("data") / "new" / "flow"
    calls: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "run_workers", run_workers)
        make_dataset(folder, **SETTINGS, jobs=1, progress=lambda done, total: calls.append((done, total)))
    return folder, calls


@pytest.fixture
def copy(small_dataset, tmp_path):
    return Path(shutil.copytree(small_dataset[0], tmp_path / "copy"))


@pytest.fixture
def here(monkeypatch):
    """Create bodies in this process, and list their names."""
    names: list[str] = []

    def in_process(program, orders, *, jobs):
        for order in orders:
            names.append(order.name)
            yield (
                order,
                pack(
                    make_body(
                        order.kind, name=order.name, seed=order.seed, number=order.number, panels=order.panels
                    )
                ),
            )

    monkeypatch.setattr(folder_module, "run_workers", in_process)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the worker processes: the last bits of a sum depend on it
    yield names
    torch.set_num_threads(threads)


def bytes_of(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_the_bytes_do_not_depend_on_the_number_of_jobs(small_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "run_workers", run_workers)
    make_dataset(tmp_path, **SETTINGS, jobs=2)
    assert bytes_of(tmp_path) == bytes_of(small_dataset[0])
    assert sorted(bytes_of(tmp_path)) == [
        *(f"body-{n:06d}.npz" for n in (0, 1, 2, 900_000, 900_001)),
        "index.json",
    ]


def test_progress_counts_every_body(small_dataset):
    assert small_dataset[1] == [(n, 5) for n in range(6)]


def test_a_sample_contains_the_flow_over_its_car(small_dataset):
    data = open_dataset(small_dataset[0])
    car = draw_car(0, 900_001)
    body = data.body("body-900001")
    truth = solve_flow(body.mesh, yaw_deg=car.yaw_deg)
    sample, shape = data.sample("body-900001"), facets(body.mesh)
    assert torch.allclose(sample.target[:, 0].double(), truth.cp, atol=1e-6)
    assert torch.allclose(sample.points.double(), shape.centroids, atol=1e-6)
    assert torch.allclose(
        sample.features[:, :3].double(), smooth_normals(body.mesh, shape.normals), atol=1e-6
    )
    assert sample.features[0, 3:6].tolist() == pytest.approx(onset(car.yaw_deg).tolist())
    assert sample.features[:, 6].unique().tolist() == pytest.approx([car.clearance])
    assert float(sample.areas.sum()) == pytest.approx(float(shape.areas.sum()), rel=1e-5)
    assert data.features[6] == "clearance" and data.targets == ("cp",) and body.ok
    low, high = torch.tensor(data.low), torch.tensor(data.high)
    assert (sample.points > low).all() and (sample.points < high).all()


def test_test_bodies_are_the_same_for_every_size_of_the_training_set(small_dataset, tmp_path, here):
    small = make_dataset(tmp_path, **SETTINGS | {"train": 1})
    large = open_dataset(small_dataset[0])
    assert small.names("test") == large.names("test") == ["body-900000", "body-900001"]
    assert small.names("train") == ["body-000000"] and len(large.names("train")) == 3
    for name in small.names("test"):
        assert small.bodies[name]["sha256"] == large.bodies[name]["sha256"]


def test_a_body_has_the_same_shape_at_a_higher_resolution():
    coarse, fine = (make_body("flow", name="a", seed=0, number=4, panels=panels) for panels in (200, 800))
    assert coarse.parameters == fine.parameters
    assert len(fine.mesh.faces) == pytest.approx(4 * len(coarse.mesh.faces), rel=0.1)
    near = torch.cdist(facets(coarse.mesh).centroids, facets(fine.mesh).centroids).argmin(dim=1)
    apart = (coarse.fields["cp"] - fine.fields["cp"][near]).abs().mean() / fine.fields["cp"].abs().mean()
    assert apart < 0.35


def test_a_harmonic_dataset_maps_normals_and_flux_to_the_potential(tmp_path, here):
    data = make_dataset(tmp_path, kind="harmonic", train=1, test=1, panels=500)
    sample = data.sample("body-000000")
    assert sample.features.shape[1] == 4 and data.features[3] == "flux" and data.targets == ("potential",)
    assert abs(float(sample.target[:, 0] @ sample.areas)) < 1e-4


def test_only_missing_and_damaged_bodies_are_created_again(small_dataset, copy, here):
    (copy / "body-000001.npz").unlink()
    (copy / "body-900000.npz").write_bytes(b"not a body")
    make_dataset(copy, **SETTINGS)
    assert here == ["body-000001", "body-900000"]
    assert {
        name: hashlib.sha256(data).hexdigest()
        for name, data in bytes_of(copy).items()
        if name != "index.json"
    } == {f"{name}.npz": entry["sha256"] for name, entry in open_dataset(copy).bodies.items()}


def test_a_complete_dataset_is_unchanged_and_a_larger_one_keeps_its_bodies(copy, here):
    before = bytes_of(copy)
    make_dataset(copy, **SETTINGS)
    assert here == [] and bytes_of(copy) == before
    data = make_dataset(copy, **SETTINGS | {"train": 4})
    assert here == ["body-000003"] and len(data.names("train")) == 4


def test_a_stopped_command_keeps_complete_files_and_is_resumed(tmp_path, here):
    def stop(count, total):
        if count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_dataset(tmp_path, **SETTINGS, progress=stop)
    assert sorted(bytes_of(tmp_path)) == ["body-000000.npz", "body-000001.npz", "index.json"]
    with pytest.raises(BadInput, match="3 of 5 bodies are missing") as excinfo:
        open_dataset(tmp_path)
    assert "it makes only what is missing." in excinfo.value.hint
    here.clear()
    assert len(make_dataset(tmp_path, **SETTINGS).names("train")) == 3
    assert here == ["body-000002", "body-900000", "body-900001"]


def test_a_damaged_body_is_refused_with_its_name_when_it_is_read(copy):
    file = copy / "body-000002.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    dataset = open_dataset(copy)
    assert len(dataset.sample("body-000001").points) == dataset.bodies["body-000001"]["panels"]
    with pytest.raises(BadInput, match=r"body-000002\.npz is damaged") as excinfo:
        dataset.sample("body-000002")
    assert "it makes only what is missing." in excinfo.value.hint
    file.unlink()
    with pytest.raises(BadInput, match=r"body-000002\.npz cannot be read"):
        dataset.body("body-000002")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": "another"}',
        '{"format": "pinchpoint operator data"}',
        "\x00\x01",
        '{"format": 1, "bodies": 3}',
    ],
)
def test_a_damaged_index_is_refused_when_reading_and_rebuilt_when_creating(copy, here, text):
    whole = bytes_of(copy)
    (copy / "index.json").write_text(text)
    with pytest.raises(BadInput, match=r"index\.json is damaged") as excinfo:
        open_dataset(copy)
    assert "keeps the complete bodies" in excinfo.value.hint
    make_dataset(copy, **SETTINGS)
    assert here == [] and bytes_of(copy) == whole


@pytest.mark.parametrize(
    "bodies", [None, 3, {"body-000000": {}}, {"body-000000": 7}, {"body-000000": {"sha256": "0"}}]
)
def test_an_index_with_damaged_entries_is_rebuilt_from_the_bodies(copy, here, bodies):
    whole = bytes_of(copy)
    index = json.loads((copy / "index.json").read_text())
    (copy / "index.json").write_text(json.dumps(index | {"bodies": bodies}))
    make_dataset(copy, **SETTINGS)
    assert here == [] and bytes_of(copy) == whole


def test_without_an_index_only_damaged_bodies_are_created_again(copy, here):
    whole = bytes_of(copy)
    (copy / "index.json").unlink()
    data = bytearray(whole["body-000001.npz"])
    data[data.index(b"vertices.npy") + 300] ^= 1  # one bit of one coordinate
    (copy / "body-000001.npz").write_bytes(data)
    (copy / "body-900000.npz").write_bytes(whole["body-000000.npz"])  # complete, but that of another body
    make_dataset(copy, **SETTINGS)
    assert here == ["body-000001", "body-900000"] and bytes_of(copy) == whole


@pytest.mark.parametrize(("key", "value"), [("panels", 300), ("seed", 5), ("kind", "harmonic")])
def test_without_an_index_bodies_of_another_dataset_are_not_overwritten(copy, here, key, value):
    (copy / "index.json").unlink()
    before = bytes_of(copy)
    with pytest.raises(BadInput, match=f"made with {key}="):
        make_dataset(copy, **SETTINGS | {key: value})
    assert here == [] and bytes_of(copy) == before


@pytest.mark.parametrize(("key", "value"), [("panels", 300), ("seed", 5), ("kind", "harmonic")])
def test_a_folder_with_another_dataset_is_unchanged(copy, key, value):
    before = bytes_of(copy)
    with pytest.raises(BadInput, match=f"made with {key}="):
        make_dataset(copy, **SETTINGS | {key: value})
    assert bytes_of(copy) == before


def test_a_bad_body_stays_on_disk_but_is_excluded_from_the_splits(tmp_path, monkeypatch, here):
    monkeypatch.setattr(body_module.flow, "faults", lambda quality: ["drag 1 is beyond 0.05"])
    data = make_dataset(tmp_path, **SETTINGS)
    assert data.names("train") == data.names("test") == []
    assert len(data.left_out()) == 5 and not data.body("body-000000").ok
    assert data.bodies["body-000000"]["quality"]["net_source"] < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "rans"}, "kind of data 'rans' does not exist"),
        ({"train": 0, "test": 0}, "0 training and 0 test bodies is not possible"),
        ({"train": -1}, "-1 training"),
        ({"train": 900_001}, "900,001 training"),
        ({"panels": 8}, "8 panels are too few"),
        ({"jobs": 0}, "--jobs 0 is out of range"),
        ({"seed": -1}, "seed is -1"),
        ({"device": "tpu"}, "device 'tpu' cannot create data"),
    ],
)
def test_invalid_settings_are_refused_before_a_file_is_written(tmp_path, change, message):
    with pytest.raises(BadInput, match=message):
        make_dataset(tmp_path / "new", **SETTINGS | change)
    assert not (tmp_path / "new").exists()


def test_as_many_bodies_are_created_in_parallel_as_fit_in_memory(tmp_path, monkeypatch):
    job_counts: list[int] = []
    monkeypatch.setattr(
        folder_module, "run_workers", lambda program, orders, *, jobs: job_counts.append(jobs) or iter(())
    )
    monkeypatch.setattr(folder_module.os, "sched_getaffinity", lambda _: range(8), raising=False)
    one = 8 * 20_000**2 + 2**29
    for times, jobs, expected_jobs in ((3.5, None, 3), (100, None, 8), (1.5, 4, 4)):
        monkeypatch.setattr(folder_module, "free_bytes", lambda times=times: int(times * one))
        with pytest.raises(BadInput, match="5 of 5 bodies are missing"):
            make_dataset(tmp_path, **SETTINGS | {"panels": 20_000}, jobs=jobs)
        assert job_counts.pop() == expected_jobs
    monkeypatch.setattr(folder_module, "free_bytes", lambda: one - 1)
    with pytest.raises(BadInput, match=r"A body of 20,000 panels takes 3\.48 GiB") as excinfo:
        make_dataset(tmp_path, **SETTINGS | {"panels": 20_000})
    assert "--panels" in excinfo.value.hint


def test_a_missing_gpu_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Missing, match="No CUDA device"):
        make_dataset(tmp_path, **SETTINGS, device="cuda")


def test_unknown_folders_splits_and_names_are_refused(small_dataset, tmp_path):
    with pytest.raises(BadInput, match="holds no dataset"):
        open_dataset(tmp_path)
    with pytest.raises(BadInput, match="no split 'validation'"):
        open_dataset(small_dataset[0]).names("validation")
    with pytest.raises(BadInput, match="no body 'body-7'"):
        open_dataset(small_dataset[0]).body("body-7")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="Cannot create the folder"):
        make_dataset(tmp_path / "file" / "below", **SETTINGS)


def test_a_body_survives_packing():
    body = make_body("harmonic", name="ball", seed=1, number=2, panels=300)
    again = unpack(pack(body), where="memory")
    assert pack(again) == pack(body)
    assert (
        isinstance(again, Body)
        and again.parameters == body.parameters
        and torch.equal(again.mesh.faces, body.mesh.faces)
    )
    for data in (b"", b"PK\x03\x04", pack(body)[:-40]):
        with pytest.raises(BadInput, match=r"x\.npz is not a body"):
            unpack(data, where="x.npz")
    buffer = io.BytesIO()
    with np.load(io.BytesIO(pack(body))) as arrays:
        np.savez(
            buffer, **{name: arrays[name] for name in arrays.files} | {"field_flux": 2 * arrays["field_flux"]}
        )
    with pytest.raises(BadInput, match="sha256 does not match its content"):
        unpack(buffer.getvalue(), where="x.npz")


def test_a_worker_reports_an_error_and_continues_with_the_next_order():
    orders = [Order("flow", "a", 0, 0, 8, "cpu"), Order("harmonic", "b", 0, 1, 200, "cpu")]
    answers = io.BytesIO()
    common_workers.serve(
        io.BytesIO(b"".join(json.dumps(dataclasses.asdict(order)).encode() + b"\n" for order in orders)),
        answers,
        workers.make,
    )
    answers.seek(0)
    error = from_dict(json.loads(answers.readline()))
    assert isinstance(error, BadInput) and "too few for a body" in error.what
    data = answers.read(json.loads(answers.readline())["bytes"])
    assert data == pack(make_body("harmonic", name="b", seed=0, number=1, panels=200))
    assert answers.read() == b""


def test_a_library_that_prints_does_not_corrupt_the_results(monkeypatch):
    monkeypatch.setenv("MKL_VERBOSE", "1")  # every matrix product prints a line to standard output
    order = Order("flow", "a", 0, 0, 60, "cpu")
    ((answer, data),) = run_workers(PROGRAM, [order], jobs=1)
    assert answer == order and unpack(data, where="a").origin.panels == 60


def test_a_worker_that_dies_is_reported(monkeypatch):
    monkeypatch.setattr(common_workers.sys, "executable", shutil.which("false"))
    with pytest.raises(TargetFailed, match="A process that makes bodies ended") as excinfo:
        list(run_workers(PROGRAM, [Order("flow", "a", 0, 0, 200, "cpu")], jobs=1))
    assert "only the missing bodies" in excinfo.value.hint
