"""Targets of regression: read with their mask, trained with or without labels, scored by their cosine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pinchpoint.cli.main import run
from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.sources import open_source
from pinchpoint.systems.cloud.evaluate import evaluate
from pinchpoint.systems.cloud.files.formats import read_scene
from pinchpoint.systems.cloud.model.model import predict_labels
from pinchpoint.systems.cloud.model.target_head import predict_targets, target_cosines, target_loss
from pinchpoint.systems.cloud.model.views import Batch, Dense, OnePerCell, draw_views
from pinchpoint.systems.cloud.train import train
from pinchpoint.systems.cloud.training.records import Evaluation
from pinchpoint.systems.cloud.training.runs import load_trained

POINTS, WIDTH = 200, 4


def write(folder: Path, name: str, *, seed: int = 0, labels: bool = False) -> Path:
    """A folder as SceneSplat writes it. Black points have one direction as target, white ones another."""
    rng = np.random.default_rng(seed)
    place = folder / name
    place.mkdir(parents=True)
    coord = rng.uniform(size=(POINTS, 3)).astype(np.float32) * 2
    side = (coord[:, 0] > 1).astype(int)
    targets = np.eye(WIDTH, dtype=np.float16)[2 * side]
    mask = np.arange(POINTS) % 5 != 0
    targets[~mask] = 0
    colour = np.repeat(255 * side[:, None], 3, axis=1).astype(np.uint8)
    arrays = {"coord": coord, "color": colour, "lang_feat": targets}
    arrays |= {"valid_feat_mask": mask} | ({"segment": side} if labels else {})
    for key, values in arrays.items():
        np.save(place / f"{key}.npy", values)
    return place


def test_a_target_is_read_with_its_mask_and_is_not_an_input(tmp_path: Path) -> None:
    place = write(tmp_path, "room")
    scene = read_scene(place, target="lang_feat")
    assert scene.names == ("red", "green", "blue") and scene.unused == () and scene.labels is None
    assert scene.targets is not None and scene.targets.shape == (POINTS, WIDTH)
    assert scene.has_target is not None and scene.has_target.sum() == 160
    part = scene.take(np.array([5, 6]))
    assert part.targets is not None and np.array_equal(part.targets, scene.targets[5:7])
    assert part.has_target is not None and part.has_target.tolist() == [False, True]
    np.save(place / "dino.npy", np.ones((POINTS, 3), np.float32))
    assert read_scene(place, target="dino").names == ("red", "green", "blue")
    assert "dino_0" in read_scene(place).names


@pytest.mark.parametrize("whole", [False, True])
def test_targets_stored_once_each_are_those_of_their_points(tmp_path: Path, whole: bool) -> None:
    """The indices name all points, with -1 for none, or the valid ones only."""
    place = write(tmp_path, "room")
    mask = np.load(place / "valid_feat_mask.npy")
    rows = np.random.default_rng(1).standard_normal((7, 16)).astype(np.float32)
    index = np.random.default_rng(2).integers(0, 7, POINTS)
    index[~mask] = -1
    np.savez(place / "svd.npz", compressed=rows, indices=index if whole else index[mask])
    scene = read_scene(place, target="svd")
    assert scene.targets is not None and np.array_equal(scene.targets[mask], rows[index[mask]])
    assert scene.has_target is not None and np.array_equal(scene.has_target, mask)
    for wrong in (index[:9], index + 1):
        np.savez(place / "svd.npz", compressed=rows, indices=wrong)
        with pytest.raises(BadInput, match=r"indices|index outside"):
            read_scene(place, target="svd")


def test_a_target_that_cannot_be_learned_is_refused(tmp_path: Path, tiny_rooms: Path) -> None:
    place = write(tmp_path / "train", "room")
    with pytest.raises(BadInput, match="no array clip") as refused:
        open_source(tmp_path, target="clip")
    assert "lang_feat" in refused.value.hint
    with pytest.raises(BadInput, match="has no labels") as refused:
        open_source(tmp_path)
    assert "--target lang_feat" in refused.value.hint
    with pytest.raises(BadInput, match="which `cloud data` made"):
        open_source(tiny_rooms, target="lang_feat")
    for values, says in (
        (np.ones((POINTS, 1), np.float32), "has shape"),
        (np.ones((POINTS, 4), int), "dtype int"),
        (np.ones((9, 4), np.float32), "there are 200 points"),
        (np.full((POINTS, 4), np.nan, np.float32), "NaN or infinite"),
    ):
        np.save(place / "lang_feat.npy", values)
        with pytest.raises(BadInput, match=says):
            open_source(tmp_path, target="lang_feat")


def test_the_loss_is_the_squared_distance_plus_one_minus_the_cosine(tmp_path: Path) -> None:
    """By hand, for two scenes of two views, of which points without a target are left out."""
    scenes = [read_scene(write(tmp_path, str(n), seed=n), target="lang_feat") for n in (0, 1)]
    batch = Batch.from_scenes(scenes)
    draw = draw_views(batch, [Dense(), OnePerCell()], cell=0.5, seed=0)
    points = draw.take(batch)
    assert points.targets is not None and points.has_target is not None
    values = torch.nn.functional.normalize(torch.randn(len(points.xyz), WIDTH, dtype=torch.float64), dim=1)
    means = []
    for start, end in zip(points.offsets[:-1].tolist(), points.offsets[1:].tolist(), strict=True):
        terms = []
        for at in range(start, end):
            truth = scenes[int(draw.scene[at])].targets[int(draw.index[at]) % POINTS]  # type: ignore[index]
            if truth.any():
                one, other = values[at], torch.from_numpy(truth.astype(np.float64))
                terms.append(((one - other) ** 2).sum() + 1 - one @ other / other.norm())
        means.append(torch.stack(terms).mean())
    truth = torch.stack(means).mean()
    assert float(target_loss(values, points, groups=4)) == pytest.approx(float(truth), rel=1e-9)
    none = replace(points, has_target=torch.zeros_like(points.has_target))
    assert float(target_loss(values, none, groups=4)) == 0.0


def test_a_target_is_learned_without_labels_and_scored_at_every_density(
    tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    for number in range(2):
        write(tmp_path / "train", f"room{number}", seed=number)
    write(tmp_path / "test", "room", seed=9)
    choices = {**tiny_net, "target": "lang_feat", "validation": 1, "augment": False, "lr": 0.01, "scenes": 1}
    reports: list[Any] = []
    record = train(tmp_path, tmp_path / "run", steps=30, progress=reports.append, **choices)
    assert record.settings["classes"] == [] and record.settings["model"]["targets"] == WIDTH
    # A single direction for all points reaches a cosine of 0.71.
    assert record.validation is not None and record.validation < 0.15
    assert dict(record.summary())["held back"].startswith(f"cosine {1 - record.validation:.3f} at step")
    assert [report.note for report in reports if report.stage in ("note", "score")] == ["cosine"]
    scores = evaluate(
        tmp_path / "run", tmp_path, tmp_path / "out", device="cpu", densities=(1.0, 0.5), pictures=True
    )
    row = scores.row("uniform", 1.0)
    assert row["cosine"] > 0.85 and row["points"] == 160 and scores.classes == () and "miou" not in row
    assert (tmp_path / "out" / "scores.csv").read_text().startswith("thinning,density,kept,points,cosine\n")
    assert dict(scores.summary())["uniform 100%"] == f"cosine {row['cosine']:.3f}"
    model, scene = (
        load_trained(tmp_path / "run").model,
        read_scene(tmp_path / "test" / "room", target="lang_feat"),
    )
    predictions = predict_targets(model, scene)
    assert np.allclose(np.linalg.norm(predictions, axis=1), 1, atol=1e-5)
    assert scene.targets is not None and scene.has_target is not None
    by_hand = (predictions * scene.targets).sum(1)[scene.has_target]
    assert np.allclose(target_cosines(model, scene), by_hand, atol=1e-5)
    with pytest.raises(BadInput, match="has no classes"):
        predict_labels(model, scene)
    one_valid = np.arange(POINTS) == 3
    np.save(tmp_path / "test" / "room" / "valid_feat_mask.npy", one_valid)
    args = [tmp_path / "run", tmp_path, "-o", tmp_path / "few", "--device", "cpu", "--densities", "1,0.02"]
    assert run(["cloud", "eval", *map(str, args)]) == 0
    few = Evaluation.from_json((tmp_path / "few" / "evaluation.json").read_text())
    assert few.row("uniform", 1.0)["points"] == 1 and few.row("uniform", 0.02)["cosine"] is None
    assert dict(few.summary())["uniform 2%"] == ""
    assert train(None, tmp_path / "run", resume=True, steps=31).step == 31
    with pytest.raises(BadInput, match="target"):
        train(None, tmp_path / "run", resume=True, steps=32, target="")


def test_the_score_of_scenes_without_labels_is_the_cosine(tmp_path: Path, tiny_net: dict[str, Any]) -> None:
    """One of three scenes is held back, and each of them in turn has no labels."""
    choices = {**tiny_net, "target": "lang_feat", "validation": 1, "scenes": 1}
    scores = []
    for unlabelled in range(3):
        folder, reports = tmp_path / str(unlabelled), []
        for number in range(3):
            write(folder / "train", f"room{number}", seed=number, labels=number != unlabelled)
        record = train(folder, folder / "run", steps=1, progress=reports.append, **choices)
        assert record.settings["classes"] == ["0", "1"]
        scores.append(record.score)
        assert dict(record.summary())["held back"].startswith(f"{record.score} ")
        assert ("cosine" in [report.note for report in reports]) == (record.score == "cosine")
    assert sorted(scores) == ["cosine", "mIoU", "mIoU"]


def test_classes_and_a_target_are_learned_together(tmp_path: Path, tiny_net: dict[str, Any]) -> None:
    write(tmp_path / "train", "room", labels=True)
    write(tmp_path / "test", "room", seed=1, labels=True)
    choices = {**tiny_net, "target": "lang_feat", "target_weight": 0.5, "scenes": 1}
    train(tmp_path, tmp_path / "run", steps=2, **choices)
    scores = evaluate(
        tmp_path / "run", tmp_path, tmp_path / "out", device="cpu", densities=(1.0,), pictures=False
    )
    assert {"cosine", "miou"} <= set(scores.row("uniform", 1.0)) and scores.classes == ("0", "1")
    (tmp_path / "test" / "room" / "segment.npy").unlink()
    unlabelled = evaluate(
        tmp_path / "run",
        tmp_path,
        tmp_path / "two",
        device="cpu",
        densities=(1.0,),
        split="test",
        pictures=False,
    )
    assert "cosine" in unlabelled.row("uniform", 1.0)
