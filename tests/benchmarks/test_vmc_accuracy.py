"""The table of energies: what its choices are of, the curve it keeps, and when a system is called right."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.core.errors import BadInput
from pinchpoint.workloads.vmc.logs import Log, Row

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vmc"


@pytest.fixture
def accuracy() -> ModuleType:
    return importlib.import_module("accuracy")


def energy(difference: float, *, error: float = 0.1e-3, rhat: float = 1.001, **others: Any) -> dict[str, Any]:
    return {"difference_ha": difference, "error_ha": error, "rhat": rhat, "changes": {}, **others}


def test_right_are_three_seeds_that_mixed_to_a_narrow_bar_near_the_reference(accuracy: ModuleType) -> None:
    good = [energy(1e-3), energy(0.2e-3), energy(-0.2e-3)]
    assert accuracy.judged(good) == "right"
    assert accuracy.judged([*good, energy(1.5e-3)]) == "right"
    assert accuracy.judged(good[:2]) == "2 of 3 seeds"
    assert accuracy.judged([*good[:2], energy(0.0, rhat=1.01)]) == "walkers have not mixed"
    assert accuracy.judged([*good[:2], energy(0.0, rhat=float("nan"))]) == "walkers have not mixed"
    assert accuracy.judged([*good[:2], energy(0.0, error=0.31e-3)]) == "an error bar above 0.3 mHa"
    assert accuracy.judged([*good[:2], energy(1.55e-3)]) == "too high"  # with its error bar 1.65
    assert accuracy.judged([*good[:2], energy(-0.4e-3)]) == "below the reference"
    assert accuracy.judged([*good[:2], energy(0.0, changes={"steps": 9})]) == "seeds of several recipes"
    assert accuracy.judged([energy(5e-3, rhat=1.2)]) == "1 of 3 seeds; walkers have not mixed; too high"
    assert accuracy.judged([{**good[0], "difference_ha": None}]) == "no reference"


def test_choices_are_of_the_network_of_the_training_or_of_its_pretraining(accuracy: ModuleType) -> None:
    net, others = accuracy.choices_of(["layers=3", "optimizer=spring", "pretrain=2000", "moves=31", "clip=8", "steps=50"])
    assert net == {"layers": 3}
    assert others == {"optimizer": "spring", "pretrain": 2000, "moves": 31, "clip": 8.0, "steps": 50}
    for wrong in ("pretrain=many", "colour=red", "moves"):
        with pytest.raises(BadInput):
            accuracy.choices_of([wrong])


def test_a_curve_is_the_means_of_a_runs_steps_and_its_picture(accuracy: ModuleType, tmp_path: Path) -> None:
    run = tmp_path / "part" / "H2-small-0"
    run.mkdir(parents=True)
    lines = [Log.cells_of(Row(step, -float(step), 2.0, 0.5, 0.1, 0.1, 0.0, step / 2)) for step in range(1, 602)]
    with (run / "log.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([Log.columns, *lines])
    (run / "convergence.png").write_bytes(b"picture")
    assert accuracy.curve(run, tmp_path / "part-H2.csv") == ["part-H2.csv", "part-H2.png"]
    with (tmp_path / "part-H2.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 201 and [float(row["energy_ha"]) for row in found[:2]] == [-2.0, -5.0]  # three steps a row
    assert found[-1] == {"step": "601", "energy_ha": "-601", "variance": "2", "acceptance": "0.5", "seconds": "300.50"}
    assert (tmp_path / "part-H2.png").read_bytes() == b"picture"


def test_a_part_is_trained_with_the_compile_cache_gone_on_with_and_merged(
    accuracy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Any] = []
    cached: list[int] = []

    class Made:
        def to_json(self) -> str:
            return json.dumps({"energy_ha": -1.1744, "error_ha": 1e-4, "difference_ha": 1e-4, "rhat": 1.0})

    monkeypatch.setattr(accuracy, "use_compile_cache", lambda: cached.append(1))
    monkeypatch.setattr(accuracy, "train", lambda system, where, **told: trained.append((system, told)))
    monkeypatch.setattr(accuracy, "evaluate", lambda where, **asked: trained.append(asked) or Made())
    monkeypatch.setattr(accuracy, "curve", lambda run, path: [path.name])
    part, whole = tmp_path / "part.json", tmp_path / "whole.json"
    asked = [
        "accuracy.py",
        "run",
        "H2",
        "--seeds",
        "0",
        "1",
        "2",
        "--set",
        "layers=1",
        "pretrain=0",
        "--moves",
        "7",
        "-o",
        str(part),
    ]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", asked)
        assert accuracy.main() == 0
    assert len(trained) == 6 and len(cached) == 2
    assert trained[0][1]["net_changes"] == {"layers": 1} and trained[0][1]["pretrain"] == 0
    assert trained[1] == {"samples": 4000, "moves": 7, "device": "cuda"}
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "merge", str(part), "-o", str(whole)])
    assert accuracy.main() == 0
    found = json.loads(whole.read_text())
    assert found["judged"] == {"H2:small": "right"} and found["runs"]["H2:small:1"]["curve"] == ["part-H2-small-1.csv"]
    monkeypatch.setattr(sys, "argv", [*asked[:-2], "--steps", "5", "-o", str(part)])
    assert accuracy.main() == 1  # another recipe under the same name
