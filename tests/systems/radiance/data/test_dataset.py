"""Datasets of cars: the same bytes for any number of jobs, resumed, verified, refused if damaged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="cars are torch's")

from pinchpoint.core.errors import BadInput, Missing  # noqa: E402
from pinchpoint.systems.common.data import dataset_folder as folder_module  # noqa: E402
from pinchpoint.systems.radiance.data import dataset as dataset_module  # noqa: E402
from pinchpoint.systems.radiance.data.cars import BODIES, RANGES, draw_car  # noqa: E402
from pinchpoint.systems.radiance.data.dataset import make_dataset, open_dataset  # noqa: E402
from pinchpoint.systems.radiance.data.sheets import FACTORS, make_sheet, pack, unpack  # noqa: E402
from pinchpoint.systems.radiance.data.sphere_tracing import picture  # noqa: E402
from pinchpoint.systems.radiance.data.workers import PROGRAM, make  # noqa: E402


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Create sheets of 4 images in this process, and list their names."""
    names: list[str] = []

    def in_process(program, orders, *, jobs):
        for order in orders:
            names.append(order.name)
            yield order, make(vars(order).copy())

    monkeypatch.setattr(folder_module, "run_workers", in_process)
    monkeypatch.setattr(dataset_module, "SHEET", 4)
    return names


def test_a_data_set_contains_the_pictures_and_factors_of_its_car_numbers(here, tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    result = make_dataset(
        tmp_path,
        images=10,
        size=16,
        seed=2,
        progress=lambda done, expected: reports.append((done, expected)),
    )
    assert here == ["cars-000000-04", "cars-000004-04", "cars-000008-02"]
    assert reports[0] == (0, 10) and reports[-1] == (10, 10)
    car, pose = draw_car(2, 9)
    expected = (picture([car], [pose], size=16).rgb[0] * 255).round().numpy()
    assert result.pixels().shape == (10, 16, 16, 3)
    assert np.abs(result.pixels()[9] - expected).max() <= 1
    assert result.factors_are == FACTORS
    assert result.factors()[9].tolist() == [*(getattr(car, name) for name in RANGES), pose.u, pose.v]


def test_body_types_are_the_classes_of_a_set_that_has_them(here, tmp_path: Path) -> None:
    result = make_dataset(tmp_path / "bodies", images=6, size=16, seed=2, bodies=True)
    labels = result.labels()
    assert result.classes == tuple(BODIES) and labels is not None and labels.tolist() == [0, 1, 2, 3, 0, 1]
    car, pose = draw_car(2, 3, body="pickup")
    expected = (picture([car], [pose], size=16).rgb[0] * 255).round().numpy()
    assert np.abs(result.pixels()[3] - expected).max() <= 1
    assert result.factor("cabin_at")[3] == car.cabin_at and result.factor("u")[3] == pose.u
    with pytest.raises(BadInput, match="made with bodies=True, not False"):
        make_dataset(tmp_path / "bodies", images=6, size=16, seed=2)
    assert make_dataset(tmp_path / "plain", images=2, size=16).labels() is None


def test_a_data_set_is_resumed_and_a_longer_one_keeps_its_cars(here, tmp_path: Path) -> None:
    first = make_dataset(tmp_path, images=6, size=16).pixels()
    (tmp_path / "cars-000000-04.npz").unlink()
    (tmp_path / "index.json").write_text("{", encoding="utf-8")
    here.clear()
    longer = make_dataset(tmp_path, images=9, size=16)
    assert here == [
        "cars-000000-04",
        "cars-000004-04",
        "cars-000008-01",
    ]  # the short sheet is not part of the longer set
    assert longer.images == len(longer.pixels()) == 9
    assert (longer.pixels()[:6] == first).all()
    here.clear()
    assert len(make_dataset(tmp_path, images=9, size=16).pixels()) == 9 and here == []


def test_worker_processes_write_the_same_bytes_as_this_process(tmp_path: Path) -> None:
    orders = [dataset_module.Order(f"cars-{first:06d}-02", 1, first, 2, 12, "cpu") for first in (0, 2)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the worker processes
    try:
        expected = {
            order.name: pack(make_sheet(seed=1, first=order.first, count=2, size=12)) for order in orders
        }
    finally:
        torch.set_num_threads(threads)
    assert {
        order.name: data for order, data in folder_module.run_workers(PROGRAM, orders, jobs=2)
    } == expected


def test_other_settings_in_the_same_folder_are_refused(here, tmp_path: Path) -> None:
    make_dataset(tmp_path, images=2, size=16)
    with pytest.raises(BadInput, match="made with size=16, not 32"):
        make_dataset(tmp_path, images=2, size=32)
    with pytest.raises(BadInput, match="made with seed=0, not 1"):
        make_dataset(tmp_path, images=2, size=16, seed=1)


def test_damaged_unfinished_and_missing_data_sets_are_refused(here, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    make_dataset(whole, images=8, size=16)
    copy = Path(shutil.copytree(whole, tmp_path / "cut"))
    file = copy / "cars-000004-04.npz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadInput, match=r"cars-000004-04\.npz is damaged"):
        open_dataset(copy).pixels()
    with pytest.raises(BadInput, match="holds no dataset"):
        open_dataset(tmp_path)
    (copy / "index.json").write_text(
        (copy / "index.json").read_text().replace('"missing": 0', '"missing": 1'), encoding="utf-8"
    )
    with pytest.raises(BadInput, match="not finished: 1 of 2 sheets"):
        open_dataset(copy)
    make_dataset(copy, images=8, size=16)
    assert (open_dataset(copy).pixels() == open_dataset(whole).pixels()).all()


def test_a_sheet_with_inconsistent_contents_is_refused() -> None:
    sheet = make_sheet(seed=0, first=0, count=2, size=8)
    assert (unpack(pack(sheet), where="here").pixels == sheet.pixels).all()
    lying = replace(sheet, origin=replace(sheet.origin, count=3))
    for data in (pack(lying), b"", b"PK", pack(sheet)[:-40]):
        with pytest.raises(BadInput, match="here is not a sheet of cars"):
            unpack(data, where="here")


@pytest.mark.parametrize(
    "settings",
    [
        {"images": 0},
        {"images": 1_000_000},
        {"size": 4},
        {"size": 4096},
        {"seed": -1},
        {"jobs": 0},
        {"device": "tpu"},
    ],
)
def test_invalid_settings_are_refused_before_the_folder_is_created(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(BadInput):
        make_dataset(tmp_path / "new", **{"images": 4, **settings})
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="No CUDA device"):
        make_dataset(tmp_path / "new", images=4, device="cuda")


def test_a_folder_with_a_users_images_is_refused_for_a_data_set(here, tmp_path: Path) -> None:
    photos = tmp_path / "my photos"
    (photos / "old").mkdir(parents=True)
    (photos / "old" / "me.JPG").write_bytes(b"")
    with pytest.raises(
        BadInput, match=r"photos contains images that are not a `radiance data` set, such as old/me\.JPG"
    ) as excinfo:
        make_dataset(photos, images=2, size=16)
    assert (
        "another folder with -o" in excinfo.value.hint
        and f"radiance train '{photos}' -o RUN" in excinfo.value.hint
    )
    assert sorted(path.name for path in photos.rglob("*")) == ["me.JPG", "old"] and here == []
    (photos / "old" / "me.JPG").rename(photos / "notes.txt")
    assert make_dataset(photos, images=2, size=16).images == 2, "other files do not matter"
