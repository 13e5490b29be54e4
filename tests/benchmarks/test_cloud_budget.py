"""The recipes of the budget benchmark say in their names whether steps are recorded."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from pinchpoint.systems.cloud.data.dataset import make_dataset

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cloud"


@pytest.fixture(scope="module")
def budget(sibling_scripts: None) -> Any:
    return importlib.import_module("budget")


def test_recipes_record_steps_as_their_names_say(budget: Any) -> None:
    for name, settings in budget.RECIPES.items():
        expected = {"recorded": True, "default": None}.get(name.rpartition(", ")[2], False)
        assert settings.get("record_steps") is expected, name
        assert budget.should_record(name) is (expected is not False)
    assert any(name.endswith("default") for name in budget.RECIPES)


@pytest.mark.parametrize("sizes", [0, 2])
def test_rows_are_written_in_order_and_a_recipe_without_recordings_has_failed(
    budget: Any,
    sizes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start(command: list[str], **_: Any) -> Any:
        recipe = command[-1]
        row = {"recipe": recipe, **dict.fromkeys(("predicted_bytes", "peak_bytes", "reserved_bytes"), 10**9)}
        row |= {
            "machine": {"gpu": "a card"},
            "recorded_bytes": None,
            "recorded_sizes": sizes if budget.should_record(recipe) else None,
        }
        return SimpleNamespace(returncode=0, communicate=lambda: ("warning\n" + json.dumps(row), None))

    monkeypatch.setattr(subprocess, "Popen", start)
    record = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["budget.py", "rooms", "--together", "-o", str(record)])
    if sizes:
        budget.main()
    else:
        with pytest.raises(SystemExit):
            budget.main()
    assert capsys.readouterr().out.count("FAILED: no step was recorded") == (0 if sizes else 3)
    written = json.loads(record.read_text())
    assert [row["recipe"] for row in written["rows"]] == list(budget.RECIPES)
    assert written["machine"] == {"gpu": "a card"}, "the processes of the recipes use the card"


def test_recipes_are_predicted_anew_beside_what_was_measured(
    budget: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_dataset(tmp_path / "rooms", train=1, test=1, points=1000, jobs=1)
    recorded, eager = "recommended, bf16, recorded", "recommended, bf16"
    measured = {"views_mode": "batched", "peak_bytes": 1, "reserved_bytes": 2, "recorded_sizes": 7}
    rows = [
        {"recipe": name, "predicted_bytes": 0, "recorded_bytes": 3, "steps": 5, **measured}
        for name in (recorded, eager)
    ]
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps({"command": "measure", "rows": rows, "machine": {"gpu": "a card"}}))
    options = [str(tmp_path / "rooms"), "--points", "1000", "--preset", "small", "--again", str(old)]

    def start(command: list[str], **_: Any) -> Any:
        monkeypatch.setattr(sys, "argv", ["budget.py", *command[2:]])
        budget.main()
        output = capsys.readouterr().out
        return SimpleNamespace(returncode=0, communicate=lambda: (output, None))

    monkeypatch.setattr(subprocess, "Popen", start)
    # Some CPUs have no bf16, and take minutes for a step.
    monkeypatch.setitem(budget.RECIPES, recorded, {"precision": "fp32", "record_steps": True})
    monkeypatch.setattr(sys, "argv", ["budget.py", *options, "--recipes", recorded, "-o", str(new)])
    budget.main()
    written = json.loads(new.read_text())
    assert written["command"] == "measure" and "--again" in written["command_of_predictions"]
    assert written["rows"][1] == rows[1], "recipes that are not named stay"
    assert written["rows"][0]["predicted_bytes"] > 0 and written["rows"][0]["reserved_bytes"] == 2
