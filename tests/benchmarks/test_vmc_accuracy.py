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
from pinchpoint.systems.vmc.training.runs import Log, Row, begin

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vmc"


@pytest.fixture
def accuracy() -> ModuleType:
    return importlib.import_module("accuracy")


@pytest.fixture
def verdicts() -> ModuleType:
    return importlib.import_module("verdicts")


def energy(difference: float, *, error: float = 0.1e-3, rhat: float = 1.001, **others: Any) -> dict[str, Any]:
    return {
        "difference_ha": difference,
        "error_ha": error,
        "rhat": rhat,
        "changes": {},
        "system": "Be",
        **others,
    }


def test_right_are_three_seeds_that_mixed_to_a_narrow_bar_near_the_reference(verdicts: ModuleType) -> None:
    good = [energy(1e-3), energy(0.2e-3), energy(-0.2e-3)]
    assert verdicts.judge(good) == "right"
    assert verdicts.judge([*good, energy(1.5e-3)]) == "right"
    assert verdicts.judge(good[:2]) == "2 of 3 seeds"
    assert verdicts.judge([*good[:2], energy(0.0, rhat=1.01)]) == "walkers have not mixed"
    assert verdicts.judge([*good[:2], energy(0.0, rhat=float("nan"))]) == "walkers have not mixed"
    assert verdicts.judge([*good[:2], energy(0.0, error=0.31e-3)]) == "an error bar above 0.3 mHa"
    assert verdicts.judge([*good[:2], energy(1.55e-3)]) == "too high"  # with its error bar 1.65
    assert verdicts.judge([*good[:2], energy(-0.4e-3)]) == "below the reference"
    assert verdicts.judge([*good[:2], energy(0.0, changes={"steps": 9})]) == "seeds of several recipes"
    assert verdicts.judge([energy(5e-3, rhat=1.2)]) == "1 of 3 seeds; walkers have not mixed; too high"
    assert verdicts.judge([{**good[0], "difference_ha": None}]) == "no reference"


def test_water_has_a_bar_of_its_own_in_energy_and_time(verdicts: ModuleType) -> None:
    bar = verdicts.BARS["H2O"]
    good = energy(9e-3, error=0.9e-3, train_s=480.0)
    assert verdicts.judge([good], bar) == "right"
    assert verdicts.judge([{**good, "difference_ha": 9.2e-3}], bar) == "too high"
    assert verdicts.judge([{**good, "train_s": 481.0}], bar) == "trained longer than 480 s"
    assert verdicts.judge([good]) == "1 of 3 seeds; an error bar above 0.3 mHa; too high"


def test_hydrogens_molecule_on_a_cpu_has_a_bar_in_energy_and_time(verdicts: ModuleType) -> None:
    good = energy(0.15e-3, train_s=180.0, system="H2", device="cpu")
    assert verdicts.judge([good] * 3) == "right"
    assert verdicts.judge([good, good, {**good, "train_s": 181.0}]) == "trained longer than 180 s"
    assert verdicts.judge([good, good, {**good, "difference_ha": 0.25e-3}]) == "too high"
    assert (
        verdicts.judge([{**good, "device": "cuda", "train_s": 500.0, "difference_ha": 0.25e-3}] * 3)
        == "right"
    )


def run_of(system: str, seed: int, difference: float, **others: Any) -> dict[str, Any]:
    shared = {
        "system": system,
        "net": "small",
        "seed": seed,
        "reference_ha": -8.0705,
        "energy_ha": -8.0705 + difference,
    }
    return {**energy(difference), "train_s": 100.0, "before_s": 0.0, **shared, **others}


def test_a_table_has_a_row_for_each_system_and_is_put_between_the_marks_of_its_page(
    accuracy: ModuleType,
    verdicts: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record, page = tmp_path / "whole.json", tmp_path / "page.md"
    made = [run_of("LiH", seed, at) for seed, at in ((1, 0.2e-3), (0, 0.387e-3), (2, -0.1e-3))] + [
        run_of("H2", 0, 1e-6)
    ]
    runs = {f"{one['system']}:small:{one['seed']}": one for one in made}
    record.write_text(json.dumps({"what": accuracy.WHAT, "runs": runs}), encoding="utf-8")
    page.write_text(f"before\n{verdicts.BEGIN}\nold\n{verdicts.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "table", str(record), "--page", str(page)])
    for _ in range(2):  # a second time changes nothing
        assert accuracy.main() == 0
        lines = page.read_text(encoding="utf-8").splitlines()
        assert lines[:2] == ["before", verdicts.BEGIN] and lines[-2:] == [verdicts.END, "after"]
        assert (
            lines[4]
            == "| H2 | 1 | -8.0705 | -8.070499 ± 0.000100 | +0.001 ± 0.100 | 1.0010 | 1.6 | 1 of 3 seeds |"
        )
        wanted = (
            "| LiH | 3 | -8.0705 | -8.070113 ± 0.000100 | +0.387 ± 0.100, +0.200 ± 0.100, -0.100 ± 0.100 "
            "| 1.0010 | 1.6 | right |"
        )
        assert lines[5] == wanted and wanted in capsys.readouterr().out
        assert lines[6:8] == ["", "Not run yet: He, Be, H2O."] and len(lines) == 10
        assert {line.count("|") for line in lines[2:6]} == {9}


def test_the_row_of_water_tells_its_seconds_and_its_picture_follows_where_there_is_one(
    verdicts: ModuleType, tmp_path: Path
) -> None:
    runs = {"a": run_of("H2O", 0, 4e-3, net="medium", train_s=470.4)}
    assert "| 10 in 480 s; trained 470 s | right |" in verdicts.table(runs)[2]
    runs["a"]["before_s"] = 200.0
    assert "trained 470 s, its pretraining not counted | right |" in verdicts.table(runs)[2]
    page = tmp_path / "page.md"
    page.write_text(f"{verdicts.BEGIN}\n{verdicts.END}\n", encoding="utf-8")
    assert "vmc-h2o.png" not in verdicts.into_page(page, ["table"])
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "vmc-h2o.png").write_bytes(b"picture")
    assert verdicts.into_page(page, ["table"]).endswith("(images/vmc-h2o.png)")
    for wrong in ("no marks\n", f"{verdicts.END}\n{verdicts.BEGIN}\n"):
        page.write_text(wrong, encoding="utf-8")
        with pytest.raises(BadInput, match="does not have exactly one place for the table"):
            verdicts.into_page(page, ["table"])
        assert page.read_text(encoding="utf-8") == wrong
    with pytest.raises(BadInput, match="cannot be read"):
        verdicts.into_page(tmp_path / "none.md", ["table"])


def test_a_stopped_run_goes_on_to_fewer_steps_and_counts_the_seconds_before(
    accuracy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Made:
        def to_json(self) -> str:
            return json.dumps({"energy_ha": -1.1744, "error_ha": 1e-4, "difference_ha": 1e-4, "rhat": 1.0})

    def train(
        system: str, where: Path, *, net: str, net_changes: Any, resume: bool, device: str, **choices: Any
    ) -> None:
        del device
        pretrain = choices.pop("pretrain")
        found = begin(
            where, system, resume=resume, net=net, net_changes=net_changes, pretrain=pretrain, choices=choices
        )
        asked.append((resume, found.config.settings.steps))

    monkeypatch.setattr(accuracy, "use_compile_cache", lambda: None)
    monkeypatch.setattr(accuracy, "train", train)
    monkeypatch.setattr(accuracy, "evaluate", lambda where, **asked: Made())
    monkeypatch.setattr(accuracy, "curve", lambda run, path: [path.name])
    part = tmp_path / "part.json"
    run = begin(
        tmp_path / "part" / "H2-small-0", "H2", resume=False, choices={"steps": 7000, "seed": 0}, pretrain=0
    )
    run.write()
    run.checkpoints.save({"arrays": {}, "settings": run.to_dict(), "seconds": 374.0, "step": 1250}, step=1250)
    (tmp_path / "part" / "H2-small-1").mkdir()  # killed before it began
    words = ["run", "H2", "--seeds", "0", "1", "--set", "pretrain=0", "steps=1300", "-o", str(part)]
    monkeypatch.setattr(sys, "argv", ["accuracy.py", *words])
    assert accuracy.main() == 0
    assert asked == [(True, 1300), (False, 1300)]
    found = json.loads(part.read_text())["runs"]
    assert found["H2:small:0"]["before_s"] == 374.0 and 374.0 < found["H2:small:0"]["train_s"] < 400.0
    assert found["H2:small:1"]["before_s"] == 0.0 and found["H2:small:1"]["train_s"] < 26.0
    part.unlink()
    monkeypatch.setattr(
        sys, "argv", ["accuracy.py", *words[:-4], "pretrain=0", "steps=1000", "-o", str(part)]
    )
    assert accuracy.main() == 1  # fewer than it has made


def test_choices_are_of_the_network_of_the_training_or_of_its_pretraining(accuracy: ModuleType) -> None:
    net, others = accuracy.choices_of(
        ["layers=3", "optimizer=spring", "pretrain=2000", "moves=31", "clip=8", "steps=50"]
    )
    assert net == {"layers": 3}
    assert others == {"optimizer": "spring", "pretrain": 2000, "moves": 31, "clip": 8.0, "steps": 50}
    for wrong in ("pretrain=many", "colour=red", "moves"):
        with pytest.raises(BadInput):
            accuracy.choices_of([wrong])


def test_a_curve_is_the_means_of_a_runs_steps_and_its_picture(accuracy: ModuleType, tmp_path: Path) -> None:
    run = tmp_path / "part" / "H2-small-0"
    run.mkdir(parents=True)
    lines = [
        Log.cells_of(Row(step, -float(step), 2.0, 0.5, 0.1, 0.1, 0.0, step / 2)) for step in range(1, 602)
    ]
    with (run / "log.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([Log.columns, *lines])
    (run / "convergence.png").write_bytes(b"picture")
    assert accuracy.curve(run, tmp_path / "part-H2.csv") == ["part-H2.csv", "part-H2.png"]
    with (tmp_path / "part-H2.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 201 and [float(row["energy_ha"]) for row in found[:2]] == [
        -2.0,
        -5.0,
    ]  # three steps a row
    assert found[-1] == {
        "step": "601",
        "energy_ha": "-601",
        "variance": "2",
        "acceptance": "0.5",
        "seconds": "300.50",
    }
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
    monkeypatch.setattr(
        sys, "argv", ["accuracy.py", "merge", str(part), "--without", f"{tmp_path}/", "-o", str(whole)]
    )
    assert accuracy.main() == 0
    found = json.loads(whole.read_text())
    assert found["commands"] == ["python " + " ".join([*asked[:-1], "part.json"])]
    assert found["judged"] == {"H2:small": "right"} and found["runs"]["H2:small:1"]["curve"] == [
        "part-H2-small-1.csv"
    ]
    monkeypatch.setattr(sys, "argv", [*asked[:-2], "--steps", "5", "-o", str(part)])
    assert accuracy.main() == 1  # another recipe under the same name
