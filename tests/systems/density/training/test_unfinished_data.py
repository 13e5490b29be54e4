"""Training on a dataset that was stopped before its end, and scores of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data.dataset import open_dataset, unfinished_notes  # noqa: E402
from pinchpoint.systems.density.scores import evaluate_set  # noqa: E402
from pinchpoint.systems.density.train import train  # noqa: E402

TINY = {"mul": 16, "lmax": 1, "gaussians": 10, "hidden": 16, "head": 16, "interactions": 2, "train_knots": 64}
CHOICES: dict[str, Any] = {"model": TINY, "device": "cpu", "steps": 1, "molecules": 2, "probes": 32}


def test_a_set_of_molecules_that_was_stopped_early_is_trained_on_with_a_note(
    density_data: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(density_data, data)
    index = json.loads((data / "index.json").read_text(encoding="utf-8"))
    lost = [index["splits"]["train"][0], index["splits"]["train"][1], index["splits"]["test"][0]]
    index["missing"] = len(lost)
    index["samples"] = {name: entry for name, entry in index["samples"].items() if name not in lost}
    index["splits"] = {
        split: [name for name in names if name not in lost] for split, names in index["splits"].items()
    }
    (data / "index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(BadInput, match="samples are missing"):
        open_dataset(data)
    record = train(data, tmp_path / "run", **CHOICES)
    assert f"2 samples of the train split of {data} are missing; the run uses the others" in record.notes[0]
    # Scores name only what is missing of their own split.
    scores = evaluate_set(tmp_path / "run", data, "test", device="cpu")
    assert len(scores.samples) == len(index["splits"]["test"]) > 0
    note = f"1 sample of the test split of {data} is missing; the scores are of the others"
    assert len(scores.notes) == 1 and note in scores.notes[0]
    assert ("note", scores.notes[0]) in scores.summary()
    assert not unfinished_notes(open_dataset(data, accept_unfinished=True), "heldout", use="")
    # Not without anything to train on, and not where files of a user are missing: they may be bad.
    for change in ({"generator": "files 1"}, {"splits": index["splits"] | {"train": []}}):
        (data / "index.json").write_text(json.dumps(index | change), encoding="utf-8")
        with pytest.raises(BadInput, match="not finished"):
            train(data, tmp_path / "other", **CHOICES)
