"""Energies along a bond: each length starts from the one before, and finished lengths are kept."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.training.training_loop import Report
from pinchpoint.systems.vmc import evaluate
from pinchpoint.systems.vmc import scan as scanning
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.optimization import programs
from pinchpoint.systems.vmc.scan import parse_bonds, scan
from pinchpoint.systems.vmc.train import train
from pinchpoint.systems.vmc.training.records import Evaluation, Scan
from pinchpoint.systems.vmc.training.runs import begin, read_run


def test_lengths_are_read_as_they_are_written() -> None:
    assert parse_bonds("1.0:2.0:5") == (1.0, 1.25, 1.5, 1.75, 2.0)
    assert parse_bonds("2.5,1.4") == (2.5, 1.4)


@pytest.mark.parametrize(
    "text", ["", "a", "1:2", "1:2:1", "1:2:3:4", "1:2:x", "1,1", "nan", "1:1:3", "1:2:5000"]
)
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a list of bond lengths") as caught:
        parse_bonds(text)
    assert (
        caught.value.hint == "Write FROM:TO:COUNT in bohr, such as 1.0:2.0:5, or a list such as 1.0,1.4,2.0."
    )


def pretended_training(asked: list[dict[str, Any]]) -> Any:
    """A training that only writes its run and its last checkpoint, and records its options."""

    def train(system: System, output: Path, *, resume: bool, progress: Any, **options: Any) -> None:
        asked.append({"bond": round(2 * system.positions[1][2], 6), "resume": resume, **options})
        choices = {name: options[name] for name in ("steps", "adam_steps", "walkers") if name in options}
        run = begin(output, system, resume=resume, choices=choices)
        run.write()
        progress(Report("train", 1, 2))
        run.checkpoints.save({"arrays": {}, "settings": run.to_dict()}, step=run.steps)

    return train


def pretended_evaluation(run: Path, output: Path, **options: Any) -> Evaluation:
    """A curve with its minimum at 1.41 bohr."""
    found = read_run(run)
    system, step = found.config.system, found.checkpoints.last_step()
    energy = 0.17 * (1 - math.exp(-(2 * system.positions[1][2] - 1.41))) ** 2 - 1.17
    made = Evaluation(
        target=str(run),
        system=system.name,
        step=step,
        energy_ha=energy,
        error_ha=1e-4,
        variance=1e-3,
        acceptance=0.5,
        rhat=1.0,
        autocorrelation=1.0,
        block=1,
        walkers=8,
        samples=options["samples"],
        moves=2,
        reference_ha=system.exact_ha,
        difference_ha=None,
        extrapolated_ha=None,
        extrapolated_error_ha=None,
        seed=0,
        precision="float32",
        device="cpu",
        seconds=0.0,
    )
    made.save(output)
    return made


def test_a_scan_that_was_stopped_goes_on_and_each_length_begins_with_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(scanning, "train", pretended_training(asked))
    monkeypatch.setattr(scanning, "evaluate", pretended_evaluation)
    options = {"bonds": "1.2:1.8:4", "samples": 50, "steps": 30, "walkers": 8, "device": "cpu"}
    folder = tmp_path / "scan"

    def stopping(number: int, count: int, length: float, report: Report) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan("H2", folder, progress=stopping, **options)
    done = json.loads((folder / "scan.json").read_text())
    assert [point["bond"] for point in done["points"]] == [1.2] and done["complete"] is False
    assert done["lowest_ha"] is None and done["no_minimum"].endswith("and there are 1")
    assert [(one["bond"], one["resume"], one["start_from"], one["steps"]) for one in asked] == [
        (1.2, False, None, 30),
        (1.4, False, folder / "bond-1.2000", 15),
    ]
    assert "adam_steps" not in asked[0] and asked[1]["adam_steps"] == 0

    asked.clear()
    made = scan("H2", folder, **options)
    assert [(one["bond"], one["resume"], one["start_from"]) for one in asked] == [
        (1.4, True, None),
        (1.6, False, folder / "bond-1.4000"),
        (1.8, False, folder / "bond-1.6000"),
    ]
    assert made.complete and made.lowest_bond_error is not None and made.lowest_error_ha is not None
    assert abs((made.lowest_bond or 0) - 1.41) < made.lowest_bond_error < 0.03
    assert abs((made.lowest_ha or 0) + 1.17) < made.lowest_error_ha < 1e-3
    assert f"at {made.lowest_bond:.3f} +- {made.lowest_bond_error:.3f} bohr" in dict(made.summary())["lowest"]
    with (folder / "scan.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["bond_bohr"]) for row in table] == [1.2, 1.4, 1.6, 1.8] and [
        row["steps"] for row in table
    ] == ["30", "15", "15", "15"]
    assert float(table[0]["energy_ha"]) == pytest.approx(0.17 * (1 - math.exp(0.21)) ** 2 - 1.17)
    assert (folder / "scan.png").read_bytes()[:4] == b"\x89PNG"
    assert [point["reference_ha"] for point in made.points] == [None, -1.174476, None, None]

    asked.clear()
    assert scan("H2", folder, **options).points == made.points and asked == []


def test_all_lengths_of_a_scan_share_their_programs(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered: list[str] = []
    for module, name in ((programs, "make_steps"), (programs, "make_burn"), (evaluate, "make_observe")):
        make = getattr(module, name)

        def counted(*args: Any, make: Any = make, name: str = name, **options: Any) -> Any:
            lowered.append(f"{name} {options.get('stage', '')}".strip())
            return make(*args, **options)

        monkeypatch.setattr(module, name, counted)
    # Scaled moves: their lengths depend on the nuclei too, which are inputs of the programs.
    tiny = {**tiny, "kind": "scaled"}
    options = {**tiny, "steps": 20, "follow": 10}
    curve = scan("H2", tmp_path / "scan", bonds="1.2,1.4,1.8", samples=20, **options)
    assert sorted(lowered) == ["make_burn", "make_observe", "make_steps adam", "make_steps spring"]
    # The programs are those of the first length, the nuclei are not: programs of its own change no length.
    own = {**tiny, "steps": options["follow"], "adam_steps": 0}
    train(system_of("H2", bond=1.4), tmp_path / "alone", start_from=tmp_path / "scan" / "bond-1.2000", **own)
    alone = evaluate.evaluate(tmp_path / "alone", tmp_path / "alone.json", samples=20, device="cpu")
    own_programs = ["make_burn", "make_burn", "make_observe", "make_steps spring"]
    assert sorted(lowered[4:]) == own_programs  # moves alone in `train` and in `evaluate`, no step by Adam
    assert curve.points[1]["energy_ha"] == pytest.approx(alone.energy_ha, abs=1e-6)
    assert read_run(tmp_path / "alone").config.settings.kind == "scaled" and 0.1 < alone.acceptance < 0.9


def test_the_summary_names_the_lengths_whose_walkers_have_not_mixed() -> None:
    points = tuple(
        {"bond": bond, "energy_ha": -1.0, "error_ha": 1e-3, "rhat": rhat}
        for bond, rhat in ((1.2, 1.01), (1.4, 1.03))
    )
    made = Scan(target="H2", points=points, lowest_bond=None, lowest_ha=None, seconds=1.0, complete=True)
    told = dict(made.summary())
    assert told["1.200 bohr"] == "-1.000000 +- 0.001000 Ha"
    assert told["1.400 bohr"] == "-1.000000 +- 0.001000 Ha; R-hat 1.030: not mixed"


def test_a_scan_of_something_without_a_bond_is_refused_and_leaves_nothing(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="The atom He has no bond"):
        scan("He", tmp_path / "scan", bonds="1:2:2", **tiny)
    with pytest.raises(BadInput, match="in H2O, which has 3 nuclei"):
        scan("H2O", tmp_path / "scan", bonds="1:2:2", **tiny)
    with pytest.raises(BadInput, match="--follow 0"):
        scan("H2", tmp_path / "scan", bonds="1:2:2", follow=0, **tiny)
    assert not (tmp_path / "scan").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(BadInput, match=r"is the folder of a run: it holds config\.json"):
        scan("H2", tmp_path / "run", bonds="1:2:2", **tiny)
