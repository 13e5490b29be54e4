"""Runs: settings that follow from the data and the views, and invalid settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.data.sources import open_source
from pinchpoint.systems.cloud.training.runs import begin, load_trained, statistics_of


def test_statistics_equal_those_of_all_points_in_one_array() -> None:
    rng = np.random.default_rng(0)
    scenes = [
        Scene(
            str(n),
            np.zeros((n, 3), np.float32),
            rng.normal(3, 2, (n, 2)).astype(np.float32),
            rng.integers(-1, 3, n),
        )
        for n in (10, 50)
    ]
    scenes = [
        Scene(s.name, s.xyz, np.c_[s.features, np.ones(s.points)].astype(np.float32), s.labels)
        for s in scenes
    ]
    statistics = statistics_of(scenes, 4)
    features, labels = (np.concatenate([getattr(s, name) for s in scenes]) for name in ("features", "labels"))
    assert statistics.mean == pytest.approx(features.mean(axis=0).tolist(), rel=1e-5)
    assert statistics.spread[:2] == pytest.approx(features.std(axis=0)[:2].tolist(), rel=1e-5)
    assert statistics.spread[2] == 1.0, "constant features are not scaled"
    labelled = labels[labels >= 0]
    assert statistics.frequency == pytest.approx([(labelled == label).mean() for label in range(4)])
    with pytest.raises(BadInput, match="No point of the training scenes has a class"):
        statistics_of([Scene("x", np.zeros((2, 3)), np.zeros((2, 0)), np.array([-1, -1]))], 2)


def test_a_run_configures_the_model_for_its_data_and_views(tiny_rooms: Path, tmp_path: Path) -> None:
    data = open_source(tiny_rooms)
    overrides = {"views": ["dense", "log-uniform:0.05:1.0"], "model": {"norm": "per-view"}, "validation": 1}
    run = begin(tmp_path / "run", data, resume=False, choices=overrides)
    assert run.config.views == 2 and run.config.in_features == 3 and run.config.classes == 8
    assert run.settings.views == ["dense", "log-uniform:0.05:1"], "names of views are normalised"
    assert [len(names) for names in run.split_names(data.names("train"))] == [4, 1]
    assert not (tmp_path / "run").exists(), "nothing is written"


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ({"model": {"classes": 3}}, "--set classes"),
        (
            {"model": {"norm": "batch"}, "views": ["dense", "one-per-cell"], "views_mode": "accumulate"},
            "The norm batch",
        ),
        ({"views": ["log-uniform:0.5:0.2"]}, "range of ratios 0.5 to 0.2"),
        ({"views": ["uniform:0.5:1.5"]}, "range of ratios 0.5 to 1.5"),
        ({"views": ["thin"]}, "'thin' is not a view"),
        ({"validation": 5}, "5 of 5 training scenes would be held back"),
        ({"preset": "huge"}, "preset 'huge' is unknown"),
    ],
)
def test_invalid_settings_are_rejected(
    tiny_rooms: Path, tmp_path: Path, overrides: dict[str, Any], what: str
) -> None:
    with pytest.raises(BadInput) as error:
        begin(tmp_path / "run", open_source(tiny_rooms), resume=False, choices=overrides)
    assert what in error.value.what and error.value.hint


def test_a_folder_without_a_run_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no run in"):
        load_trained(tmp_path)
