"""The record of larger systems: commands as they ran, and the step at which a run was stopped."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs JAX")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vmc"


def write_run(folder: Path, name: str, *, step: int, complete: bool, device: str) -> None:
    energy: dict[str, Any] = {"energy_ha": -1.5, "error_ha": 0.1, "difference_ha": None, "rhat": 1.0}
    (folder / name).mkdir()
    evaluation = {"target": "elsewhere", "step": step, "device": device, **energy}
    training = {"target": "elsewhere", "step": step, "device": device, "complete": complete}
    (folder / f"{name}.json").write_text(json.dumps(evaluation))
    (folder / name / "record.json").write_text(json.dumps(training))


def test_a_record_has_the_devices_of_its_runs_and_the_steps_at_which_they_were_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    systems = importlib.import_module("systems")
    write_run(tmp_path, "mg", step=1500, complete=True, device="cpu")
    write_run(tmp_path, "si", step=700, complete=False, device="cuda")
    systems.collect(Namespace(folder=tmp_path, output=tmp_path / "record.json"))
    runs = json.loads((tmp_path / "record.json").read_text())["runs"]
    assert {name: run["stopped_at_step"] for name, run in runs.items()} == {"mg": None, "si": 700}
    for name, device in (("mg", "cpu"), ("si", "cuda")):
        train, evaluate = systems.RUNS[name]
        assert runs[name]["commands"] == [
            f"pinchpoint vmc train {train} --device {device} -o {name}",
            f"pinchpoint vmc eval {name} {evaluate} --device {device} -o {name}.json",
        ]
        assert runs[name]["evaluation"]["target"] == runs[name]["training"]["target"] == name
    assert capsys.readouterr().out.startswith("mg     -1.500000 +- 0.100000 Ha  R-hat 1.0000")


def test_a_record_keeps_runs_that_are_not_collected_again(tmp_path: Path) -> None:
    systems = importlib.import_module("systems")
    for number, names in enumerate((("mg", "si", "al"), ("si",))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            write_run(folder, name, step=100 * (number + 1), complete=True, device="cpu")
    evaluation = json.loads((tmp_path / "0" / "al.json").read_text()) | {"energy_ha": -9.0}
    (tmp_path / "1" / "al.json").write_text(json.dumps(evaluation))
    for folder in ("0", "1"):
        systems.collect(Namespace(folder=tmp_path / folder, output=tmp_path / "record.json"))
    runs = json.loads((tmp_path / "record.json").read_text())["runs"]
    steps = {name: run["training"]["step"] for name, run in runs.items()}
    assert steps == {"al": 100, "mg": 100, "si": 200}
    assert runs["al"]["evaluation"]["energy_ha"] == -9.0


def test_the_page_has_the_curve_of_the_record() -> None:
    scan = json.loads((FOLDER.parent / "results" / "vmc_scan_cpu.json").read_text(encoding="utf-8"))
    text = (FOLDER.parents[1] / "docs" / "systems" / "vmc.md").read_text(encoding="utf-8")
    assert scan["complete"] and all(command in text for command in scan["commands"])
    energy = f"{scan['lowest_ha']:.5f} ± {scan['lowest_error_ha']:.5f} Ha"
    assert f"the minimum is {energy} at {scan['lowest_bond']:.3f} ± {scan['lowest_bond_error']:.3f}" in text
    worst = max(point["error_ha"] for point in scan["points"])
    assert f"of the four energies are at most {1e3 * worst:.2f} mHa" in text
    assert f"took {scan['seconds']:.0f} s" in text


def test_the_page_has_the_energies_of_nitrogen() -> None:
    record = json.loads((FOLDER.parent / "results" / "vmc_systems_h200.json").read_text(encoding="utf-8"))
    text = (FOLDER.parents[1] / "docs" / "systems" / "vmc.md").read_text(encoding="utf-8")
    stages = [record["runs"][name] for name in ("n2-start", "n2-middle", "n2")]
    for stage in stages:
        step, seconds = stage["training"]["step"], stage["training"]["seconds"]
        assert f"{step:,} in {seconds:.0f} s" in text or f"{step:,} steps in {seconds:.0f} s" in text
    energies = [stage["evaluation"] for stage in stages[1:]]
    first, last = (f"{1e3 * one['difference_ha']:.1f} ± {1e3 * one['error_ha']:.1f} mHa" for one in energies)
    assert f"It is {last} above the reference" in text and f"second stage it was {first}" in text
    assert f"mixed (R-hat {energies[1]['rhat']:.4f})" in text
