"""Training on a dataset that was stopped before its end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.density.train import train  # noqa: E402

TINY = {"mul": 16, "lmax": 1, "gaussians": 10, "hidden": 16, "head": 16, "interactions": 2, "train_knots": 64}
CHOICES: dict[str, Any] = {"model": TINY, "device": "cpu", "steps": 1, "molecules": 2, "probes": 32}


def test_a_set_of_molecules_that_was_stopped_early_is_trained_on_with_a_note(
    density_data: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(density_data, data)
    index = json.loads((data / "index.json").read_text(encoding="utf-8"))
    index |= {"missing": 2, "wanted": index["wanted"] + 2}
    (data / "index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(BadInput, match="samples are missing"):
        open_dataset(data)
    record = train(data, tmp_path / "run", **CHOICES)
    assert "2 samples of" in record.notes[0] and "are missing; the run uses the others" in record.notes[0]
    # Not without anything to train on, and not where files of a user are missing: they may be bad.
    for change in ({"generator": "files 1"}, {"splits": index["splits"] | {"train": []}}):
        (data / "index.json").write_text(json.dumps(index | change), encoding="utf-8")
        with pytest.raises(BadInput, match="not finished"):
            train(data, tmp_path / "other", **CHOICES)
