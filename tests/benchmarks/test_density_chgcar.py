"""The CHGCAR benchmark: its density is the documented one, and its ratios are those of the times."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.systems.density.grid.structure import check_structure

FOLDER = Path(__file__).parents[2] / "benchmarks" / "density"


@pytest.fixture
def bench() -> Any:
    return importlib.import_module("chgcar")


def test_the_density_has_twelve_atoms_and_96_electrons(bench: Any) -> None:
    volume = bench.hafnia(12)
    check_structure(volume.structure)
    assert volume.species.count("Hf") == 4 and volume.species.count("O") == 8
    assert volume.electrons == pytest.approx(96) and volume.total.min() > 0


def test_programs_alternate_and_ratios_are_ours_over_theirs(bench: Any) -> None:
    order: list[str] = []
    bench.alternate({name: lambda name=name: order.append(name) for name in "abc"}, 3)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    times = {
        "pinchpoint": {"cpu": [1.0, 1.0], "wall": [2.0, 2.0]},
        "other": {"cpu": [4.0, 4.0], "wall": [5.0, 5.0]},
    }
    ours, other = bench.rows("read", times)
    assert (ours["ours_over_it"], other["ours_over_it"], other["wall_s"]) == (1.0, 0.25, 5.0)
    assert "0.250" in bench.table([ours, other])
