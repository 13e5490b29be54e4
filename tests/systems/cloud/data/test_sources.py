"""Scenes of one's own files, in two folders: read alike, and refused where they do not fit each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.sources import Own, fingerprint, open_source
from pinchpoint.systems.cloud.evaluate import evaluate
from pinchpoint.systems.cloud.train import train


def write(
    folder: Path, name: str, points: int, *, most: int = 2, colour: bool = True, labels: bool = True
) -> None:
    """A folder of .npy as Pointcept lays them out."""
    rng = np.random.default_rng(points)
    place = folder / name
    place.mkdir(parents=True)
    np.save(place / "coord.npy", rng.uniform(size=(points, 3)).astype(np.float32))
    if colour:
        np.save(place / "color.npy", rng.integers(0, 255, (points, 3)).astype(np.uint8))
    if labels:
        np.save(place / "segment.npy", np.arange(points) % (most + 1))


def test_files_of_ones_own_are_a_source_of_both_splits(tmp_path: Path) -> None:
    for name, points in (("a", 30), ("b", 40)):
        write(tmp_path / "train", name, points)
    write(tmp_path / "test", "c", 20, most=4)
    found = open_source(tmp_path)
    assert isinstance(found, Own)
    assert (found.names("train"), found.names("test")) == (["train/a", "train/b"], ["test/c"])
    assert found.features == ("red", "green", "blue") and found.classes == ("0", "1", "2", "3", "4")
    assert found.scene("train/b").points == 40
    before = fingerprint(found)
    np.save(tmp_path / "test" / "c" / "coord.npy", np.zeros((20, 3), np.float32))
    assert fingerprint(open_source(tmp_path)) == before, "of the training scenes alone"
    np.save(tmp_path / "train" / "a" / "segment.npy", np.ones(30, int))
    assert fingerprint(open_source(tmp_path)) != before


def test_a_data_set_that_was_made_is_known_by_its_training_rooms(tiny_rooms: Path) -> None:
    found = open_source(tiny_rooms)
    assert len(found.names("train")) == 5 and len(fingerprint(found)) == 64


def test_scenes_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not contain a dataset") as caught:
        open_source(tmp_path)
    assert "train/ and test/" in caught.value.hint
    with pytest.raises(BadInput, match="does not exist"):
        open_source(tmp_path / "nowhere")
    (tmp_path / "none" / "train").mkdir(parents=True)
    with pytest.raises(BadInput, match="no scenes in"):
        open_source(tmp_path / "none")
    write(tmp_path / "bare" / "train", "a", 9, labels=False)
    with pytest.raises(BadInput, match="has no labels"):
        open_source(tmp_path / "bare")
    write(tmp_path / "two" / "train", "a", 9)
    write(tmp_path / "two" / "train", "b", 9, colour=False)
    with pytest.raises(BadInput, match="has the features none, but other scenes have red, green, blue"):
        open_source(tmp_path / "two")


def test_a_label_that_means_no_class_is_told_of_and_then_left_out(
    tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    for split in ("train", "test"):
        write(tmp_path / split, "room", 200)
        labels = (np.arange(200) % 3).astype(np.uint8)
        labels[:50] = 255
        np.save(tmp_path / split / "room" / "segment.npy", labels)
    with pytest.raises(BadInput, match="not clear whether 255 is a class") as caught:
        open_source(tmp_path)
    assert "--set ignore=255" in caught.value.hint
    found = open_source(tmp_path, ignore=[255])
    assert found.classes == ("0", "1", "2") and (found.scene("train/room").labels == -1).sum() == 50
    made = train(tmp_path, tmp_path / "run", steps=2, ignore=[255], **tiny_net)
    assert made.settings["frequency"] == pytest.approx([1 / 3] * 3)
    scores = evaluate(
        tmp_path / "run", tmp_path, tmp_path / "out", device="cpu", densities=(1.0,), pictures=False
    )
    assert scores.row("uniform", 1.0)["points"] == 150, "by what the run was told"
    assert train(tmp_path, tmp_path / "run", resume=True, steps=3).step == 3
    with pytest.raises(BadInput, match="ignore"):
        train(tmp_path, tmp_path / "run", resume=True, ignore=[255, 0])


def test_255_is_a_class_where_its_neighbours_are(tmp_path: Path, tiny_rooms: Path) -> None:
    write(tmp_path / "train", "room", 300, most=255)
    assert len(open_source(tmp_path).classes) == 256
    with pytest.raises(BadInput, match="which `cloud data` made"):
        open_source(tiny_rooms, ignore=[255])


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        ("coord.npy", np.full((9, 3), np.nan, np.float32), "NaN or infinite"),
        ("coord.npy", np.full((9, 3), np.inf, np.float32), "NaN or infinite"),
        ("coord.npy", np.zeros((0, 3), np.float32), "points"),
        ("segment.npy", np.zeros(7, int), "segment"),
    ],
)
def test_a_damaged_scene_is_refused_by_its_name(
    tmp_path: Path, file: str, values: np.ndarray, says: str
) -> None:
    write(tmp_path / "train", "a", 9)
    np.save(tmp_path / "train" / "a" / file, values)
    with pytest.raises(BadInput) as caught:
        open_source(tmp_path)
    assert says in caught.value.what and caught.value.hint


def test_a_run_is_trained_and_scored_on_files_of_ones_own_however_small(
    tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    """One scene is a single point, one lies in a single cell."""
    for split in ("train", "test"):
        write(tmp_path / split, "room", 200)
        write(tmp_path / split, "point", 1)
        write(tmp_path / split, "cell", 50)
        np.save(tmp_path / split / "cell" / "coord.npy", np.full((50, 3), 0.125, np.float32))
    choices = {
        **tiny_net,
        "views": "dense,one-per-cell,log-uniform:0.05:1",
        "consistency": "cos",
        "validation": 1,
    }
    told: list[tuple[str, int, int]] = []
    watch = lambda report: told.append((report.stage, report.done, report.total))  # noqa: E731
    made = train(tmp_path, tmp_path / "run", steps=3, progress=watch, **choices)
    assert told[:9] == [*(("files", n, 6) for n in range(1, 7)), *(("data", n, 3) for n in range(1, 4))], (
        "each once"
    )
    assert made.complete and made.loss is not None and np.isfinite(made.loss)
    scores = evaluate(
        tmp_path / "run", tmp_path, tmp_path / "out", device="cpu", densities=(1.0, 0.05), pictures=False
    )
    assert scores.scenes == 3 and scores.row("uniform", 1.0)["points"] == 251
    assert scores.row("uniform", 0.05)["points"] == 10 + 1 + 2, "a scene keeps a point at least"


def test_a_folder_to_score_may_lack_the_last_classes_but_not_have_more(
    tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    write(tmp_path / "own" / "train", "room", 200, most=4)
    train(tmp_path / "own", tmp_path / "run", steps=1, **tiny_net)
    write(tmp_path / "few" / "test", "room", 60, most=2)
    scores = evaluate(
        tmp_path / "run", tmp_path / "few", tmp_path / "out", device="cpu", densities=(1.0,), pictures=False
    )
    iou = scores.row("uniform", 1.0)["iou"]
    assert len(iou) == 5 and iou[3:] == [None, None] and scores.classes == ("0", "1", "2", "3", "4")
    write(tmp_path / "more" / "test", "room", 60, most=5)
    with pytest.raises(BadInput, match="trained with the classes 0, 1, 2, 3, 4, but"):
        evaluate(tmp_path / "run", tmp_path / "more", tmp_path / "out", device="cpu")
