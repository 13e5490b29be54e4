"""Unfamiliar systems: the page on the estimated errors has the figures of the records."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="density models are torch's")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "density"
PAGE = ROOT / "docs" / "systems" / "density.md"
PACKAGED = ROOT / "src" / "pinchpoint" / "systems" / "density" / "model" / "packaged"
TITLES = {
    "heldout": "held-out molecules, two geometries of each",
    "radical": "radicals",
    "ion": "ions",
    "crystal": "crystals",
    "strange": "unusual and distorted molecules",
    "larger": "larger molecules and dimers",
}


@pytest.fixture(scope="module")
def unfamiliar() -> ModuleType:
    return importlib.import_module("unfamiliar")


def record_of(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text("utf-8"))


def test_half_of_the_estimates_are_within_the_median_factor(unfamiliar: ModuleType) -> None:
    rows = [{"estimate": estimate, "nmae": 0.01} for estimate in (0.01, 0.02, 0.08, 0.005, 0.0025)]
    assert unfamiliar.median_factor(rows) == pytest.approx(2)  # of the factors 1, 2, 8, 2 and 4


def test_the_page_has_the_counts_and_the_factor_of_the_records(unfamiliar: ModuleType) -> None:
    record, page = record_of("density_unfamiliar_cpu.json"), PAGE.read_text("utf-8")
    rows, usual = record["rows"], record["usual_nmae"]
    figures = [
        f"half of the estimates are within a factor of {record['median_factor']:.1f} of the true error",
        f"{unfamiliar.WRONG * usual * 100:.2f} % for molecules",
        f"| all | {len(rows)} | {record['wrong']} | {record['wrong_and_caught']} "
        f"({record['caught'] * 100:.1f} %) | {record['right_but_alarmed']} of {record['right']} "
        f"({record['false_alarms'] * 100:.1f} %) |",
    ]
    for kind, title in TITLES.items():
        counts = unfamiliar.count_rows([row for row in rows if row["kind"] == kind], usual)
        caught = counts["wrong_and_caught"] if counts["wrong"] else "-"
        figures.append(
            f"| {title} | {counts['systems']} | {counts['wrong']} | {caught} | "
            f"{counts['right_but_alarmed']} of {counts['right']} |"
        )
    figures += [
        f"{re.sub('-90000[01]$', '', row['name'])} ({row['nmae'] * 100:.1f} %)"
        for row in rows
        if (row["nmae"] > unfamiliar.WRONG * usual) != row["likely_wrong"]
    ]
    assert [text for text in figures if text not in page] == []
    assert record["median_factor"] == pytest.approx(unfamiliar.median_factor(rows))
    command = "python benchmarks/density/unfamiliar.py judge references wide -o "
    assert command in page and record["command"].startswith(command)
    for one in (record, record_of("density_unfamiliar_oxides_cpu.json")):
        assert one["machine"]["versions"]["torch"]


def test_the_page_names_the_usual_errors_of_the_estimates_and_the_sizes_of_the_weights() -> None:
    page = PAGE.read_text("utf-8")
    molecules, oxides = (
        json.loads((PACKAGED / f"{name}.json").read_text("utf-8")) for name in ("molecules", "oxides")
    )
    assert molecules["estimate"]["usual_nmae"] == molecules["heldout_nmae"]
    assert oxides["estimate"]["usual_nmae"] == oxides["test_nmae"]
    new_molecules, new_cells = (f"{one['estimate']['usual_nmae'] * 100:.2f} %" for one in (molecules, oxides))
    polymorphs = f"{oxides['heldout_nmae'] * 100:.2f} %"
    assert (
        f"molecules never trained on ({new_molecules}) or, for oxides, over new cells of the trained "
        f"crystals ({new_cells}, not the {polymorphs} of polymorphs never trained on)" in page
    )
    sizes = {name: (PACKAGED / f"{name}.pt").stat().st_size / 1e6 for name in ("molecules", "oxides")}
    for name, one in (("molecules", molecules), ("oxides", oxides)):
        assert f"for {name} ({one['parameters']:,} parameters, {sizes[name]:.1f} MB)" in page


def test_the_script_that_trained_packaged_weights_exists_or_its_commit_is_named() -> None:
    for path in PACKAGED.glob("*.json"):
        command = json.loads(path.read_text("utf-8"))["command"]
        for script in re.findall(r"benchmarks/\S+\.py", command):
            assert (ROOT / script).exists() or re.search(r"in commit [0-9a-f]{40}\b", command), path.name
