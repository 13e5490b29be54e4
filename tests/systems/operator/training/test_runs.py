"""What a run derives from its dataset, and which of these settings cannot be changed."""

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


def test_flow_models_use_the_mirror_and_harmonic_ones_do_not(tiny_data: Path, harmonic_data: Path) -> None:
    operator_config, data = config_of(tiny_data), open_dataset(tiny_data)
    assert operator_config.mirror is not None and data.features[operator_config.mirror] == "onset_y"
    assert (
        operator_config.vectors == (0, 3)
        and operator_config.turning
        and not config_of(tiny_data, model={"turning": False}).turning
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
def test_the_mirror_can_be_disabled_and_compat_has_none(tiny_data: Path, choices: dict[str, Any]) -> None:
    assert config_of(tiny_data, **choices).mirror is None


def test_surroundings_hardly_change_when_every_panel_is_divided_in_four(tiny_data: Path) -> None:
    data = open_dataset(tiny_data)
    corners = (mesh := data.body(data.names("train")[0]).mesh).vertices[mesh.faces]
    middles = (corners + corners.roll(1, 1)) / 2  # midpoints of the sides a-c, b-a, c-b
    a, b, c = corners.unbind(1)
    ca, ab, bc = middles.unbind(1)
    children = [
        torch.stack(part, 1) for part in ((ca, ab, bc), (a, ab, ca), (ab, b, bc), (ca, bc, c))
    ]  # the first is the middle one
    areas = facets(mesh).areas.float()
    features = torch.cat([facets(mesh).normals.float(), torch.zeros(len(areas), 4)], dim=1)
    coarse, fine = (torch.cat([part.mean(1) for part in parts]).float() for parts in ([corners], children))

    def change_of(operator_config: OperatorConfig) -> float:
        one = graph_of(coarse, operator_config, areas=areas, features=features)
        four = graph_of(fine, operator_config, areas=areas.repeat(4) / 4, features=features.repeat(4, 1))
        gaps = [
            (x - y[: len(x)]).abs().mean()
            for x, y in zip(one.point_statistics, four.point_statistics, strict=True)
        ]
        return max(float(gap) for gap in gaps)

    operator_config = config_of(tiny_data)
    narrow = OperatorConfig.preset("small", low=operator_config.low, high=operator_config.high, in_features=7)
    assert change_of(operator_config) < 0.15 < 0.8 < change_of(narrow)


def test_a_run_may_have_a_larger_box_but_not_other_features(tiny_data: Path) -> None:
    assert config_of(tiny_data, model={"high": (4.0, 1.1, 3.0)}).high == (4.0, 1.1, 3.0)
    with pytest.raises(BadInput, match="--set cannot change in_features and out_features") as excinfo:
        config_of(tiny_data, model={"in_features": 3, "out_features": 2})
    assert "Leave them out" in excinfo.value.hint


def test_a_dataset_without_training_bodies_is_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", kind="harmonic", train=0, test=1, panels=100, jobs=1)
    with pytest.raises(BadInput, match="no bodies to train with") as excinfo:
        config_of(tmp_path / "data")
    assert "--train" in excinfo.value.hint


def test_a_new_run_stores_its_whole_model_configuration_as_json(tiny_data: Path) -> None:
    run = begin(
        tiny_data / "nowhere", open_dataset(tiny_data), resume=False, choices={"model": {"channels": 8}}
    )
    assert json.loads(json.dumps(run.settings.model)) == json.loads(run.config.to_json())
