"""`pinchpoint demo`: every record it creates is saved, printed and in the report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinchpoint.cli import demo
from pinchpoint.cli.main import run
from pinchpoint.core.discovery import load_workload
from pinchpoint.core.records import Record, load


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch, samples: dict[str, Record]) -> dict[str, list[Any]]:
    """Replace the four verbs by ones that return at once, and record their arguments."""
    requests: dict[str, list[Any]] = {
        "predict": [],
        "study": [],
        "verify": [],
        "example": [],
        "cars": [],
        "report": [],
    }

    def predict(target: str, **options: Any) -> Record:
        requests["predict"].append((target, options["size"]))
        return samples["forecast"]

    def study(target: str, *, output: Path, **options: Any) -> Record:
        requests["study"].append((target, options["sizes"], options["on"]))
        output.mkdir()
        samples["study"].save(output / "study.json")
        return samples["study"]

    def verify(target: str, *, variant: str, **options: Any) -> Record:
        requests["verify"].append((target, variant))
        load_workload(target).resolve_settings(options["settings"])  # raises for an unknown name
        return samples["verdict"]

    def example(folder: Path, **options: Any) -> Any:
        requests["example"].append(folder.name)
        volume = SimpleNamespace(grid=(4, 5, 6))
        result = SimpleNamespace(
            volume=volume,
            probes=120,
            probes_s=0.5,
            device="cpu",
            electrons_raw=20.002,
            path=folder / "CHGCAR",
            notes=("no augmentation",),
        )
        return SimpleNamespace(
            name="ethanol", electrons=20, prediction=result, change=0.17, picture=folder / "slices.png"
        )

    def cars(folder: Path, **options: Any) -> Any:
        requests["cars"].append(folder.name)
        options["progress"]("steps", 10, 40)
        result = SimpleNamespace(step=40, images=16, seconds=9.0, device="cpu")
        return SimpleNamespace(
            training=result,
            before=4.0,
            after=1.0,
            norms=(2.0, 30.0),
            picture=folder / "sheet.png",
            passed=samples.get("cars") is None,
        )

    def report(records: list[Path], output: Path) -> Path:
        requests["report"] = [load(path).to_dict()["kind"] for path in records]
        return output

    monkeypatch.setattr("pinchpoint.forecasting.predict.predict", predict)
    monkeypatch.setattr("pinchpoint.studies.study.study", study)
    monkeypatch.setattr("pinchpoint.verification.verify.verify", verify)
    monkeypatch.setattr("pinchpoint.systems.density.demo.example", example)
    monkeypatch.setattr("pinchpoint.systems.radiance.demo.example", cars)
    monkeypatch.setattr("pinchpoint.reporting.report.report", report)
    return requests


def test_the_demo_predicts_studies_and_verifies_every_workload_it_shows(
    verbs: dict[str, list[Any]], tmp_path: Path, capsys
) -> None:
    assert run(["demo", "-o", str(tmp_path / "out")]) == 0
    assert [target for target, _ in verbs["predict"]] == ["field", "operator", "orbital"]
    assert {on for _, _, on in verbs["study"]} == {"fake"}
    shown = ("field", "operator", "density", "radiance", "orbital")
    assert verbs["verify"] == [(name, load_workload(name).variants[-1].name) for name in shown]
    assert verbs["report"] == [
        *["forecast", "study", "verdict"] * 2,
        "verdict",
        "verdict",
        "forecast",
        "study",
        "verdict",
    ]
    output = capsys.readouterr().out
    assert str(tmp_path / "out" / "report.html") in output.splitlines()[-1]
    assert verbs["example"] == ["density-ethanol"] and "20.002 predicted, 20 in the molecule" in output
    assert verbs["cars"] == ["radiance-cars"] and "loss 4.00 at first, 1.00 at the end" in output


def test_a_failed_verdict_makes_the_demo_exit_1(
    verbs: dict[str, list[Any]], tmp_path: Path, samples: dict[str, Record]
) -> None:
    samples["verdict"] = dataclasses.replace(samples["verdict"], status="fail")  # type: ignore[type-var]
    assert run(["demo", "-o", str(tmp_path)]) == 1
    assert verbs["report"], "the report is written all the same"


def test_a_run_that_does_not_learn_makes_the_demo_exit_1(
    verbs: dict[str, list[Any]], tmp_path: Path, samples: dict[str, Record], capsys
) -> None:
    samples["cars"] = samples["verdict"]  # any: said to fail
    assert run(["demo", "-o", str(tmp_path)]) == 1
    assert "FAIL: the discriminator did not learn" in capsys.readouterr().out and verbs["report"]


def test_a_workload_whose_framework_is_missing_is_skipped_with_a_message(
    verbs: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(demo, "_installed", lambda framework: framework == "torch")
    assert run(["demo", "-o", str(tmp_path)]) == 0
    assert [target for target, _ in verbs["predict"]] == ["field", "operator"]
    output = capsys.readouterr().err
    assert (
        "skipping orbital: jax is not installed" in output
        and "skipping density: e3nn is not installed" in output
    )
    assert verbs["example"] == []
    monkeypatch.setattr(demo, "_installed", lambda framework: False)
    assert run(["demo", "-o", str(tmp_path)]) == 3


def test_a_folder_that_cannot_be_created_is_refused_before_any_work(
    verbs: dict[str, list[Any]], tmp_path: Path, capsys
) -> None:
    (tmp_path / "file").write_text("taken", encoding="utf-8")
    assert run(["demo", "-o", str(tmp_path / "file" / "out")]) == 2
    assert "Cannot create the folder" in capsys.readouterr().err
    assert verbs["predict"] == []
