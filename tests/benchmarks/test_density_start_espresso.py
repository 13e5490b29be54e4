"""The record of Quantum ESPRESSO's iterations is continued with the same settings only."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="density models are torch's")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "density"


@pytest.mark.parametrize(("option", "value"), [("--number", "3"), ("--box-a", "7"), ("--cutoff-ry", "40")])
def test_a_record_of_another_geometry_or_cutoff_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    script, file = importlib.import_module("start_espresso"), tmp_path / "record.json"
    record = {
        "kind": "density-start-espresso",
        "number": 900_000,
        "box_a": 8.0,
        "cutoff_ry": 120.0,
        "threshold_ry": 1e-8,
        "systems": [{"name": "water"}],
    }
    file.write_text(json.dumps(record))
    command = ["start_espresso.py", "--systems", "water", "-o", str(file)]
    monkeypatch.setattr(sys, "argv", command)
    script.main()  # water is there already
    monkeypatch.setattr(sys, "argv", [*command, option, value])
    with pytest.raises(SystemExit, match="other settings"):
        script.main()
    assert json.loads(file.read_text()) == record
