"""The table of energies: choices of a run, its curve, and the verdict on a system."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs JAX")

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


def test_a_system_is_right_with_three_mixed_seeds_close_to_the_reference(verdicts: ModuleType) -> None:
    good = [energy(1e-3), energy(0.2e-3), energy(-0.2e-3)]
    assert verdicts.judge(good) == "right"
    assert verdicts.judge([*good, energy(1.5e-3)]) == "right"
    assert verdicts.judge(good[:2]) == "2 of 3 seeds"
    assert verdicts.judge([*good[:2], energy(0.0, rhat=1.01)]) == "walkers have not mixed"
    assert verdicts.judge([*good[:2], energy(0.0, rhat=float("nan"))]) == "walkers have not mixed"
    assert verdicts.judge([*good[:2], energy(0.0, error=0.31e-3)]) == "an error bar above 0.3 mHa"
    assert verdicts.judge([*good[:2], energy(1.55e-3)]) == "too high"  # 1.65 mHa including the error bar
    assert verdicts.judge([*good[:2], energy(-0.4e-3)]) == "below the reference"
    assert verdicts.judge([*good[:2], energy(0.0, changes={"steps": 9})]) == "seeds of several recipes"
    assert verdicts.judge([energy(5e-3, rhat=1.2)]) == "1 of 3 seeds; walkers have not mixed; too high"
    assert verdicts.judge([{**good[0], "difference_ha": None}]) == "no reference"


def test_water_has_its_own_bar_in_energy_and_time(verdicts: ModuleType) -> None:
    bar = verdicts.BARS["H2O"]
    good = energy(9e-3, error=0.9e-3, train_s=480.0)
    assert verdicts.judge([good], bar) == "right"
    assert verdicts.judge([{**good, "difference_ha": 9.2e-3}], bar) == "too high"
    assert verdicts.judge([{**good, "train_s": 481.0}], bar) == "trained longer than 480 s"
    assert verdicts.judge([good]) == "1 of 3 seeds; an error bar above 0.3 mHa; too high"


def test_h2_on_a_cpu_has_its_own_bar_in_energy_and_time(verdicts: ModuleType) -> None:
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


def test_the_table_has_a_row_per_system_and_is_written_between_the_markers(
    accuracy: ModuleType,
    verdicts: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record, page = tmp_path / "whole.json", tmp_path / "page.md"
    all_runs = [run_of("LiH", seed, at) for seed, at in ((1, 0.2e-3), (0, 0.387e-3), (2, -0.1e-3))] + [
        run_of("H2", 0, 1e-6)
    ]
    runs = {f"{run_record['system']}:small:{run_record['seed']}": run_record for run_record in all_runs}
    record.write_text(json.dumps({"what": accuracy.WHAT, "runs": runs}), encoding="utf-8")
    page.write_text(f"before\n{verdicts.BEGIN}\nold\n{verdicts.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "table", str(record), "--page", str(page)])
    for _ in range(2):  # the second call changes nothing
        assert accuracy.main() == 0
        lines = page.read_text(encoding="utf-8").splitlines()
        assert lines[:2] == ["before", verdicts.BEGIN] and lines[-2:] == [verdicts.END, "after"]
        assert (
            lines[4]
            == "| H2 | 1 | -8.0705 | -8.070499 ± 0.000100 | +0.001 ± 0.100 | 1.0010 | 1.6 | 1 of 3 seeds |"
        )
        expected_row = (
            "| LiH | 3 | -8.0705 | -8.070113 ± 0.000100 | +0.387 ± 0.100, +0.200 ± 0.100, -0.100 ± 0.100 "
            "| 1.0010 | 1.6 | right |"
        )
        assert lines[5] == expected_row and expected_row in capsys.readouterr().out
        assert lines[6:8] == ["", "Not run yet: He, Be, H2O."] and len(lines) == 10
        assert {line.count("|") for line in lines[2:6]} == {9}


def test_the_row_of_water_has_its_seconds_and_its_plot_follows_if_it_exists(
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


def test_a_stopped_run_resumes_with_fewer_steps_and_counts_earlier_seconds(
    accuracy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_calls: list[Any] = []

    class FakeEvaluation:
        def to_json(self) -> str:
            return json.dumps({"energy_ha": -1.1744, "error_ha": 1e-4, "difference_ha": 1e-4, "rhat": 1.0})

    def train(
        system: str, where: Path, *, net: str, net_changes: Any, resume: bool, device: str, **choices: Any
    ) -> None:
        del device
        pretrain = choices.pop("pretrain")
        run = begin(
            where, system, resume=resume, net=net, net_changes=net_changes, pretrain=pretrain, choices=choices
        )
        train_calls.append((resume, run.config.settings.steps))

    monkeypatch.setattr(accuracy, "use_compile_cache", lambda: None)
    monkeypatch.setattr(accuracy, "train", train)
    monkeypatch.setattr(accuracy, "evaluate", lambda where, **arguments: FakeEvaluation())
    monkeypatch.setattr(accuracy, "curve", lambda run, path: [path.name])
    part = tmp_path / "part.json"
    run = begin(
        tmp_path / "part" / "H2-small-0", "H2", resume=False, choices={"steps": 7000, "seed": 0}, pretrain=0
    )
    run.write()
    run.checkpoints.save({"arrays": {}, "settings": run.to_dict(), "seconds": 374.0, "step": 1250}, step=1250)
    (tmp_path / "part" / "H2-small-1").mkdir()  # a run that was killed before its first step
    words = ["run", "H2", "--seeds", "0", "1", "--set", "pretrain=0", "steps=1300", "-o", str(part)]
    monkeypatch.setattr(sys, "argv", ["accuracy.py", *words])
    assert accuracy.main() == 0
    assert train_calls == [(True, 1300), (False, 1300)]
    result = json.loads(part.read_text())["runs"]
    assert result["H2:small:0"]["before_s"] == 374.0 and 374.0 < result["H2:small:0"]["train_s"] < 400.0
    assert result["H2:small:1"]["before_s"] == 0.0 and result["H2:small:1"]["train_s"] < 26.0
    part.unlink()
    monkeypatch.setattr(
        sys, "argv", ["accuracy.py", *words[:-4], "pretrain=0", "steps=1000", "-o", str(part)]
    )
    assert accuracy.main() == 1  # fewer steps than the run has taken


def test_choices_are_split_into_network_training_and_pretraining(accuracy: ModuleType) -> None:
    net, others = accuracy.choices_of(
        ["layers=3", "optimizer=spring", "pretrain=2000", "moves=31", "clip=8", "steps=50"]
    )
    assert net == {"layers": 3}
    assert others == {"optimizer": "spring", "pretrain": 2000, "moves": 31, "clip": 8.0, "steps": 50}
    for wrong in ("pretrain=many", "colour=red", "moves"):
        with pytest.raises(BadInput):
            accuracy.choices_of([wrong])


def test_a_curve_has_the_means_of_the_steps_and_a_plot(accuracy: ModuleType, tmp_path: Path) -> None:
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
        result = list(csv.DictReader(file))
    assert len(result) == 201 and [float(row["energy_ha"]) for row in result[:2]] == [
        -2.0,
        -5.0,
    ]  # three steps a row
    assert result[-1] == {
        "step": "601",
        "energy_ha": "-601",
        "variance": "2",
        "acceptance": "0.5",
        "seconds": "300.50",
    }
    assert (tmp_path / "part-H2.png").read_bytes() == b"picture"


def test_a_part_is_trained_with_the_compile_cache_resumed_and_merged(
    accuracy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    cache_calls: list[int] = []

    class FakeEvaluation:
        def to_json(self) -> str:
            return json.dumps({"energy_ha": -1.1744, "error_ha": 1e-4, "difference_ha": 1e-4, "rhat": 1.0})

    monkeypatch.setattr(accuracy, "use_compile_cache", lambda: cache_calls.append(1))
    monkeypatch.setattr(accuracy, "train", lambda system, where, **options: calls.append((system, options)))
    monkeypatch.setattr(
        accuracy, "evaluate", lambda where, **arguments: calls.append(arguments) or FakeEvaluation()
    )
    monkeypatch.setattr(accuracy, "curve", lambda run, path: [path.name])
    part, merged = tmp_path / "part.json", tmp_path / "whole.json"
    arguments = [
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
        monkeypatch.setattr(sys, "argv", arguments)
        assert accuracy.main() == 0
    assert len(calls) == 6 and len(cache_calls) == 2
    assert calls[0][1]["net_changes"] == {"layers": 1} and calls[0][1]["pretrain"] == 0
    assert calls[1] == {"samples": 4000, "moves": 7, "device": "cuda"}
    monkeypatch.setattr(
        sys, "argv", ["accuracy.py", "merge", str(part), "--without", f"{tmp_path}/", "-o", str(merged)]
    )
    assert accuracy.main() == 0
    result = json.loads(merged.read_text())
    assert result["commands"] == ["python " + " ".join([*arguments[:-1], "part.json"])]
    assert result["judged"] == {"H2:small": "right"} and result["runs"]["H2:small:1"]["curve"] == [
        "part-H2-small-1.csv"
    ]
    monkeypatch.setattr(sys, "argv", [*arguments[:-2], "--steps", "5", "-o", str(part)])
    assert accuracy.main() == 1  # a different recipe under the same name
