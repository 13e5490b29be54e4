"""What a run takes from its data set, and what it refuses to be told otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.data.dataset import make_dataset, open_dataset
from pinchpoint.systems.operator.data.surface import facets
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import graph_of
from pinchpoint.systems.operator.training.runs import begin


def config_of(data: Path, **choices: Any) -> OperatorConfig:
    return begin(data / "nowhere", open_dataset(data), resume=False, choices=choices).config


@pytest.fixture(scope="module")
def harmonic_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harmonic") / "data"
    make_dataset(folder, kind="harmonic", train=2, test=1, panels=100, jobs=1)
    return folder


def test_flow_is_read_in_the_mirror_and_a_harmonic_field_is_not(tiny_data: Path, harmonic_data: Path) -> None:
    made, data = config_of(tiny_data), open_dataset(tiny_data)
    assert made.mirror is not None and data.features[made.mirror] == "onset_y"
    assert (
        made.vectors == (0, 3) and made.turning and not config_of(tiny_data, model={"turning": False}).turning
    )
    assert data.low[1] == -data.high[1], "the box is its own mirror image"
    assert config_of(harmonic_data).mirror is None and not config_of(harmonic_data).turning
    assert config_of(harmonic_data).vectors == (0,)


@pytest.mark.parametrize(
    "choices",
    [
        {"model": {"mirror": None}},
        {"preset": "compat"},
        {"model": {"compat": True, "weights": "mean", "local_radii": ()}},
    ],
)
def test_the_mirror_can_be_left_out_and_compat_has_none(tiny_data: Path, choices: dict[str, Any]) -> None:
    assert config_of(tiny_data, **choices).mirror is None


def test_surroundings_look_the_same_when_every_panel_of_training_is_cut_in_four(tiny_data: Path) -> None:
    data = open_dataset(tiny_data)
    corners = (mesh := data.body(data.names("train")[0]).mesh).vertices[mesh.faces]
    middles = (corners + corners.roll(1, 1)) / 2  # of the sides a-c, b-a, c-b
    a, b, c = corners.unbind(1)
    ca, ab, bc = middles.unbind(1)
    children = [
        torch.stack(part, 1) for part in ((ca, ab, bc), (a, ab, ca), (ab, b, bc), (ca, bc, c))
    ]  # the first is amid
    areas = facets(mesh).areas.float()
    features = torch.cat([facets(mesh).normals.float(), torch.zeros(len(areas), 4)], dim=1)
    coarse, fine = (torch.cat([part.mean(1) for part in parts]).float() for parts in ([corners], children))

    def changed(made: OperatorConfig) -> float:
        one = graph_of(coarse, made, areas=areas, features=features)
        four = graph_of(fine, made, areas=areas.repeat(4) / 4, features=features.repeat(4, 1))
        gaps = [
            (x - y[: len(x)]).abs().mean()
            for x, y in zip(one.point_statistics, four.point_statistics, strict=True)
        ]
        return max(float(gap) for gap in gaps)

    made = config_of(tiny_data)
    narrow = OperatorConfig.preset("small", low=made.low, high=made.high, in_features=7)
    assert changed(made) < 0.15 < 0.8 < changed(narrow)


def test_a_run_may_have_a_larger_box_but_not_other_features(tiny_data: Path) -> None:
    assert config_of(tiny_data, model={"high": (4.0, 1.1, 3.0)}).high == (4.0, 1.1, 3.0)
    with pytest.raises(BadInput, match="--set cannot change in_features and out_features") as caught:
        config_of(tiny_data, model={"in_features": 3, "out_features": 2})
    assert "Leave them out" in caught.value.hint


def test_a_data_set_without_training_bodies_is_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", kind="harmonic", train=0, test=1, panels=100, jobs=1)
    with pytest.raises(BadInput, match="no bodies to train with") as caught:
        config_of(tmp_path / "data")
    assert "--train" in caught.value.hint


def test_a_new_run_says_all_of_its_model_in_json(tiny_data: Path) -> None:
    run = begin(
        tiny_data / "nowhere", open_dataset(tiny_data), resume=False, choices={"model": {"channels": 8}}
    )
    assert json.loads(json.dumps(run.settings.model)) == json.loads(run.config.to_json())
