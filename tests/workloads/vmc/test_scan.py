"""Energies along a bond: each length begins where the one before ended, and what is done is not done again."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.core.errors import BadInput
from pinchpoint.workloads.vmc.loop import Report
from pinchpoint.workloads.vmc.runs import read_run
from pinchpoint.workloads.vmc.scan import lowest, parse_bonds, scan


def test_lengths_are_read_as_they_are_written() -> None:
    assert parse_bonds("1.0:2.0:5") == (1.0, 1.25, 1.5, 1.75, 2.0)
    assert parse_bonds("2.5,1.4") == (2.5, 1.4)


@pytest.mark.parametrize("text", ["", "a", "1:2", "1:2:1", "1:2:3:4", "1:2:x", "1,1", "nan", "1:1:3", "1:2:5000"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="are no lengths of a bond") as caught:
        parse_bonds(text)
    assert caught.value.mend == "write FROM:TO:COUNT in bohr, such as 1.0:2.0:5, or 1.0,1.4,2.0"


def test_the_bottom_of_a_parabola_is_found_and_none_at_an_end() -> None:
    bonds = [1.0, 1.3, 1.7, 2.0]
    found = lowest(bonds, [(bond - 1.41) ** 2 - 1.17 for bond in bonds])
    assert found is not None and np.allclose(found, (1.41, -1.17))
    assert lowest(bonds, [4.0, 3.0, 2.0, 1.0]) is None


def test_a_scan_that_was_stopped_goes_on_and_each_length_begins_with_the_one_before(tiny: dict[str, Any], tmp_path: Path) -> None:
    asked = {**tiny, "bonds": "1.2,1.4", "samples": 20, "follow": 10, "steps": 20}
    folder, trained = tmp_path / "scan", []

    def stopping(number: int, count: int, length: float, report: Report) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan("H2", folder, progress=stopping, **asked)
    done = json.loads((folder / "scan.json").read_text())
    assert [point["bond"] for point in done["points"]] == [1.2] and done["complete"] is False
    before = (folder / "bond-1.2000" / "record.json").read_bytes()

    made = scan("H2", folder, progress=lambda number, *_: trained.append(number), **asked)
    assert set(trained) == {2} and made.complete
    assert (folder / "bond-1.2000" / "record.json").read_bytes() == before
    first, second = (read_run(folder / f"bond-{length}") for length in ("1.2000", "1.4000"))
    assert (second.told.settings.steps, second.told.settings.adam_steps) == (10, 0)
    began, ended = second.checkpoints.load(0).arrays, first.checkpoints.load(20).arrays
    assert all(began[name].tobytes() == ended[name].tobytes() for name in began if name.startswith("params"))

    with (folder / "scan.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["bond_bohr"]) for row in table] == [1.2, 1.4]
    assert [float(row["energy_ha"]) for row in table] == pytest.approx([point["energy_ha"] for point in made.points], abs=1e-7)
    assert (folder / "scan.png").read_bytes()[:4] == b"\x89PNG"
    assert made.points[1]["reference_ha"] == -1.174476 and made.points[0]["reference_ha"] is None


def test_a_scan_of_something_without_a_bond_is_refused_and_leaves_nothing(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a bond of 1 bohr in the atom He"):
        scan("He", tmp_path / "scan", bonds="1:2:2", **tiny)
    with pytest.raises(BadInput, match="in H2O, which has 3 nuclei"):
        scan("H2O", tmp_path / "scan", bonds="1:2:2", **tiny)
    with pytest.raises(BadInput, match="--follow 0"):
        scan("H2", tmp_path / "scan", bonds="1:2:2", follow=0, **tiny)
    assert not (tmp_path / "scan").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(BadInput, match=r"is the folder of a run: config\.json is in it"):
        scan("H2", tmp_path / "run", bonds="1:2:2", **tiny)
