"""Sources of the user's own files in two folders: consistent scenes are read, others are rejected."""

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
    """Write a folder of .npy files in the layout of Pointcept."""
    rng = np.random.default_rng(points)
    place = folder / name
    place.mkdir(parents=True)
    np.save(place / "coord.npy", rng.uniform(size=(points, 3)).astype(np.float32))
    if colour:
        np.save(place / "color.npy", rng.integers(0, 255, (points, 3)).astype(np.uint8))
    if labels:
        np.save(place / "segment.npy", np.arange(points) % (most + 1))


def test_own_files_are_a_source_of_both_splits(tmp_path: Path) -> None:
    for name, points in (("a", 30), ("b", 40)):
        write(tmp_path / "train", name, points)
    write(tmp_path / "test", "c", 20, most=4)
    source = open_source(tmp_path)
    assert isinstance(source, Own)
    assert (source.names("train"), source.names("test")) == (["train/a", "train/b"], ["test/c"])
    assert source.features == ("red", "green", "blue") and source.classes == ("0", "1", "2", "3", "4")
    assert source.scene("train/b").points == 40
    before = fingerprint(source)
    np.save(tmp_path / "test" / "c" / "coord.npy", np.zeros((20, 3), np.float32))
    assert fingerprint(open_source(tmp_path)) == before, "only training scenes matter"
    np.save(tmp_path / "train" / "a" / "segment.npy", np.ones(30, int))
    assert fingerprint(open_source(tmp_path)) != before


def test_a_generated_dataset_has_a_fingerprint_of_its_training_rooms(tiny_rooms: Path) -> None:
    source = open_source(tiny_rooms)
    assert len(source.names("train")) == 5 and len(fingerprint(source)) == 64


def test_missing_or_inconsistent_scenes_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not contain a dataset") as error:
        open_source(tmp_path)
    assert "train/ and test/" in error.value.hint
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


def test_language_features_are_reported_and_are_not_inputs(tmp_path: Path, tiny_net: dict[str, Any]) -> None:
    write(tmp_path / "train", "room", 200)
    np.save(tmp_path / "train" / "room" / "lang_feat.npy", np.ones((200, 16), np.float16))
    reports: list[Any] = []
    record = train(tmp_path, tmp_path / "run", steps=1, progress=reports.append, **tiny_net)
    assert record.settings["features"] == ["red", "green", "blue"]
    assert [report.note for report in reports if report.stage == "note"] == [
        "The network does not read lang_feat; --target lang_feat trains it to predict that."
    ]
    assert dict(record.summary())["inputs"] == "coordinates, red, green, blue"


def test_an_ambiguous_label_255_is_reported_and_can_be_ignored(
    tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    for split in ("train", "test"):
        write(tmp_path / split, "room", 200)
        labels = (np.arange(200) % 3).astype(np.uint8)
        labels[:50] = 255
        np.save(tmp_path / split / "room" / "segment.npy", labels)
    with pytest.raises(BadInput, match="not clear whether 255 is a class") as error:
        open_source(tmp_path)
    assert "--set ignore=255" in error.value.hint
    source = open_source(tmp_path, ignore=[255])
    assert source.classes == ("0", "1", "2") and (source.scene("train/room").labels == -1).sum() == 50
    record = train(tmp_path, tmp_path / "run", steps=2, ignore=[255], **tiny_net)
    assert record.settings["frequency"] == pytest.approx([1 / 3] * 3)
    scores = evaluate(
        tmp_path / "run", tmp_path, tmp_path / "out", device="cpu", densities=(1.0,), pictures=False
    )
    assert scores.row("uniform", 1.0)["points"] == 150, "the run remembers the ignored label"
    assert train(tmp_path, tmp_path / "run", resume=True, steps=3).step == 3
    with pytest.raises(BadInput, match="ignore"):
        train(tmp_path, tmp_path / "run", resume=True, ignore=[255, 0])


def test_label_255_is_a_class_if_label_254_occurs(tmp_path: Path, tiny_rooms: Path) -> None:
    write(tmp_path / "train", "room", 300, most=255)
    assert len(open_source(tmp_path).classes) == 256
    with pytest.raises(BadInput, match="which `cloud data` made"):
        open_source(tiny_rooms, ignore=[255])


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("coord.npy", np.full((9, 3), np.nan, np.float32), "NaN or infinite"),
        ("coord.npy", np.full((9, 3), np.inf, np.float32), "NaN or infinite"),
        ("coord.npy", np.zeros((0, 3), np.float32), "points"),
        ("segment.npy", np.zeros(7, int), "segment"),
    ],
)
def test_an_invalid_scene_file_is_rejected(
    tmp_path: Path, file: str, values: np.ndarray, message: str
) -> None:
    write(tmp_path / "train", "a", 9)
    np.save(tmp_path / "train" / "a" / file, values)
    with pytest.raises(BadInput) as error:
        open_source(tmp_path)
    assert message in error.value.what and error.value.hint


def test_a_run_is_trained_and_evaluated_on_own_files_of_any_size(
    tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    """One scene is a single point, and one lies in a single cell."""
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
    reports: list[tuple[str, int, int]] = []
    watch = lambda report: reports.append((report.stage, report.done, report.total))  # noqa: E731
    record = train(tmp_path, tmp_path / "run", steps=3, progress=watch, **choices)
    assert reports[:9] == [*(("files", n, 6) for n in range(1, 7)), *(("data", n, 3) for n in range(1, 4))], (
        "each file is reported once"
    )
    assert record.complete and record.loss is not None and np.isfinite(record.loss)
    scores = evaluate(
        tmp_path / "run", tmp_path, tmp_path / "out", device="cpu", densities=(1.0, 0.05), pictures=False
    )
    assert scores.scenes == 3 and scores.row("uniform", 1.0)["points"] == 251
    assert scores.row("uniform", 0.05)["points"] == 10 + 1 + 2, "every scene keeps at least one point"


def test_an_evaluated_folder_may_lack_the_last_classes_but_not_have_more(
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
