"""Evaluation: the table equals predictions counted by hand, and a trained run beats a trivial one."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data import eval_subsampling
from pinchpoint.systems.cloud.data.dataset import make_dataset, open_dataset
from pinchpoint.systems.cloud.evaluate import DENSITIES, evaluate
from pinchpoint.systems.cloud.train import train
from pinchpoint.systems.cloud.training.records import Evaluation, name_of
from pinchpoint.systems.cloud.training.runs import load_trained


@pytest.fixture(scope="module")
def run(tiny_rooms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloud") / "run"
    model = {
        "cell": 0.4,
        "widths": (8, 12),
        "blocks": (1, 1),
        "attention": (0, 1),
        "heads": 2,
        "window": 32,
        "features": 8,
    }
    train(tiny_rooms, folder, model=model, device="cpu", validation=0, steps=3, points=400)
    return folder


def test_every_row_equals_a_count_point_by_point(tiny_rooms: Path, run: Path, tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    evaluation = evaluate(
        run, tiny_rooms, tmp_path / "out", device="cpu", progress=lambda *at: reports.append(at)
    )
    names = [name_of(row) for row in evaluation.rows]
    uniform = [f"uniform {share}%" for share in (100, 50, 25, 10, 5)]
    assert names == [*uniform, "one-per-cell", *(f"distance {share}%" for share in (50, 25, 10, 5))]
    assert reports[-1] == (20, 20)
    data, model_of_run = open_dataset(tiny_rooms), load_trained(run)
    truth, predictions = [], []
    for number, name in enumerate(data.names("test")):
        scene = data.scene(name)
        part = scene.take(eval_subsampling.by_distance(scene, 0.25, seed=number))
        with torch.no_grad():
            logits, _ = model_of_run.model(
                torch.from_numpy(part.xyz), torch.from_numpy(part.features), torch.tensor([0, part.points])
            )
        truth.append(np.asarray(part.labels))
        predictions.append(logits.argmax(1).numpy())
    true_labels, predicted_labels = np.concatenate(truth), np.concatenate(predictions)
    row = evaluation.row("distance", 0.25)
    assert row["accuracy"] == pytest.approx((true_labels == predicted_labels).mean()) and row["points"] == 500
    present = sorted(set(true_labels.tolist()))
    expected = [
        ((true_labels == k) & (predicted_labels == k)).sum()
        / ((true_labels == k) | (predicted_labels == k)).sum()
        for k in present
    ]
    assert row["miou"] == pytest.approx(np.mean(expected))
    counts = sum(
        np.bincount(np.asarray(data.scene(name).labels), minlength=8) for name in data.names("train")
    )
    majority = int(np.argmax(counts))
    assert evaluation.majority == data.classes[majority]
    assert row["majority_accuracy"] == pytest.approx((true_labels == majority).mean())


def test_the_folder_contains_the_table_the_plot_and_the_record(
    tiny_rooms: Path, run: Path, tmp_path: Path
) -> None:
    evaluation = evaluate(run, tiny_rooms, tmp_path / "out", device="cpu", densities=(1.0, 0.1))
    assert (tmp_path / "out" / "scores.png").read_bytes()[:4] == b"\x89PNG"
    with (tmp_path / "out" / "scores.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["thinning"], row["density"]) for row in rows] == [
        ("uniform", "1"),
        ("uniform", "0.1"),
        ("one-per-cell", ""),
        ("distance", "0.1"),
    ]
    assert [float(row["miou"]) for row in rows] == pytest.approx(
        [row["miou"] for row in evaluation.rows], rel=1e-5
    )
    assert f"iou {evaluation.classes[0]}" in rows[0]
    again = Evaluation.from_json((tmp_path / "out" / "evaluation.json").read_text(encoding="utf-8"))
    assert again.rows == evaluation.rows and again.files == ("scores.csv", "scores.png")
    evaluate(run, tiny_rooms, tmp_path / "out", device="cpu", densities=(1.0,), pictures=False)
    assert not (tmp_path / "out" / "scores.png").exists(), "the plot of an earlier evaluation is removed"
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text(encoding="utf-8"))["files"] == [
        "scores.csv"
    ]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"densities": (0.0, 1.0)}, "densities 0, 1"),
        ({"densities": ()}, "densities (none)"),
        ({"densities": (2.0,)}, "densities 2"),
        ({"split": "all"}, "split 'all' is unknown"),
        ({"which": "first"}, "There is no checkpoint called 'first'"),
        ({"cell": -1.0}, "cell size is -1"),
        ({"cell": 0.0}, "cell size is 0"),
    ],
)
def test_invalid_evaluation_options_are_rejected(
    tiny_rooms: Path, run: Path, tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(BadInput) as error:
        evaluate(run, tiny_rooms, tmp_path / "out", device="cpu", **options)
    assert what in error.value.what and error.value.hint and not (tmp_path / "out").exists()


def test_other_features_and_missing_test_scenes_are_rejected(run: Path, tmp_path: Path) -> None:
    make_dataset(tmp_path / "splats", train=1, test=1, points=1000, gaussians=True, jobs=1)
    with pytest.raises(BadInput, match="trained with the features red, green, blue"):
        evaluate(run, tmp_path / "splats", tmp_path / "out", device="cpu")
    make_dataset(tmp_path / "untested", train=1, test=0, points=1000, jobs=1)
    with pytest.raises(BadInput, match="has no test scenes"):
        evaluate(run, tmp_path / "untested", tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_short_training_beats_predicting_the_most_frequent_class(tmp_path: Path) -> None:
    make_dataset(tmp_path / "rooms", train=8, test=2, points=2000, jobs=1)
    model = {"cell": 0.2, "widths": (16, 24, 32), "blocks": (1, 1, 1), "attention": (0, 0, 0), "heads": 4}
    train(tmp_path / "rooms", tmp_path / "run", model=model, steps=60, lr=0.005, device="cpu", validation=0)
    evaluation = evaluate(
        tmp_path / "run",
        tmp_path / "rooms",
        tmp_path / "out",
        device="cpu",
        densities=(1.0, 0.1),
        pictures=False,
    )
    assert DENSITIES[0] == 1.0
    full, thin = evaluation.row("uniform", 1.0), evaluation.row("uniform", 0.1)
    assert full["accuracy"] > full["majority_accuracy"] + 0.15, full
    assert full["miou"] > 2.5 * full["majority_miou"] and thin["miou"] > 1.3 * thin["majority_miou"], (
        full,
        thin,
    )
