"""Weights: a file gives the model of its run, damaged files are refused, the packaged ones are small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="cloud models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.cloud.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.cloud.evaluate import evaluate  # noqa: E402
from pinchpoint.systems.cloud.model.model import predict_labels  # noqa: E402
from pinchpoint.systems.cloud.train import train  # noqa: E402
from pinchpoint.systems.cloud.training.runs import load_trained  # noqa: E402
from pinchpoint.systems.cloud.training.weights import PACKAGED, export, load_weights  # noqa: E402


def test_a_file_gives_the_model_settings_and_step_of_its_run(
    tiny_rooms: Path, tiny_net: dict[str, Any], tmp_path: Path
) -> None:
    train(tiny_rooms, tmp_path / "run", steps=3, ema=0.9, **tiny_net)
    run = load_trained(tmp_path / "run")
    exact, half = (export(tmp_path / "run", tmp_path / f"{half}.pt", half=half) for half in (False, True))
    stored = load_weights(exact)
    assert stored.step == 3 and stored.config == run.config and not stored.model.training
    for name, value in stored.model.state_dict().items():
        assert torch.equal(value, run.model.state_dict()[name]), name
    data = open_dataset(tiny_rooms)
    scene = data.scene(data.names("test")[0])
    assert np.array_equal(predict_labels(stored.model, scene), predict_labels(run.model, scene))
    assert half.stat().st_size < exact.stat().st_size
    for name, value in load_weights(half).model.state_dict().items():
        torch.testing.assert_close(value, run.model.state_dict()[name], rtol=1e-3, atol=1e-6)
    assert str(tiny_rooms) not in exact.with_suffix(".json").read_text(encoding="utf-8"), "paths of a machine"
    scores = [
        evaluate(weights, tiny_rooms, tmp_path / "scores", densities=[1.0], device="cpu", pictures=False).rows
        for weights in (tmp_path / "run", exact)
    ]
    assert scores[0] == scores[1]


def test_what_holds_no_weights_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.pt"
    for contents in (PACKAGED.read_bytes()[:1000], b"weights"):
        file.write_bytes(contents)
        with pytest.raises(BadInput, match=r"mine\.pt does not hold weights of a cloud model"):
            load_weights(file)
    torch.save({"format": "mine"}, file)
    with pytest.raises(BadInput, match=r"mine\.pt does not hold weights of a cloud model"):
        load_weights(file)
    with pytest.raises(BadInput, match="There is no run in"):
        load_weights(tmp_path / "missing")
    with pytest.raises(BadInput, match="There is no run in"):
        export(tmp_path / "missing", file)


def test_the_packaged_weights_are_small_and_name_their_origin() -> None:
    assert PACKAGED.stat().st_size < 300_000
    trained = load_weights()
    about = json.loads(PACKAGED.with_suffix(".json").read_text(encoding="utf-8"))
    assert about["step"] == trained.step and about["config"]["classes"] == trained.settings.classes
    assert about["data_command"].startswith("pinchpoint cloud data")
    assert about["train_command"].startswith("pinchpoint cloud train")
