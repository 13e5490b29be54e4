"""Convergence of the oxides' densities with the cutoff of the plane waves, and a comparison with CP2K.

    python benchmarks/density/oxide_cutoffs.py cutoffs -o FILE.json [--device cuda]
    python benchmarks/density/oxide_cutoffs.py cp2k DENSITY.cube -o FILE.json [--device cuda]

`cutoffs` compares the density of the smallest cell of each crystal at the cutoff of `density data --oxides`
with that at a far higher one, by NMAE on the coarser grid. `cp2k` compares MgO with 8 atoms at the gamma
point with a density that CP2K computed from cp2k_mgo.inp in this folder. Densities are taken to the same
grid by Fourier transform.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core import machine
from pinchpoint.core.records import now
from pinchpoint.systems.density.data.crystals.gth import read_potentials, table_path
from pinchpoint.systems.density.data.crystals.oxides import PRESETS
from pinchpoint.systems.density.data.crystals.plane_waves import solve_crystal
from pinchpoint.systems.density.data.crystals.polymorphs import polymorph
from pinchpoint.systems.density.files.formats import read_volume
from pinchpoint.systems.density.grid.structure import Structure

FCC = np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]])
FLUORITE = np.array([[0.0] * 3, [0.25] * 3, [0.75] * 3])
CELLS = {
    "HfO2": Structure(5.08 * FCC, ("Hf", "O", "O"), FLUORITE),
    "MgO": Structure(4.212 * FCC, ("Mg", "O"), np.array([[0.0] * 3, [0.5] * 3])),
    "TiO2": Structure(4.8 * FCC, ("Ti", "O", "O"), FLUORITE),
    "ZrO2": Structure(5.09 * FCC, ("Zr", "O", "O"), FLUORITE),
    "CaO": Structure(4.81 * FCC, ("Ca", "O"), np.array([[0.0] * 3, [0.5] * 3])),
    "ZnO": Structure(4.6 * FCC, ("Zn", "O"), np.array([[0.0] * 3, [0.25] * 3])),
}
REFERENCE, REFERENCE_OF = 180.0, {"MgO": 250.0}  # hartree


def on_grid(values: np.ndarray, grid: tuple[int, int, int]) -> np.ndarray:
    """Return a periodic density on another grid, by Fourier transform."""
    waves, result = np.fft.fftn(values) / values.size, np.zeros(grid, complex)
    numbers = []
    for n in map(min, values.shape, grid):
        own = np.fft.fftfreq(n, 1 / n).astype(int)
        numbers.append(own[np.abs(own) < n / 2])
    result[np.ix_(*numbers)] = waves[np.ix_(*numbers)]
    return np.fft.ifftn(result).real * result.size


def nmae(values: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(values - reference).sum() / np.abs(reference).sum())


def solve(structure: Structure, cutoff: float, device: str, **options: Any) -> Any:
    potentials = read_potentials(table_path(), set(structure.species))
    return solve_crystal(structure, potentials, cutoff_hartree=cutoff, device=device, **options)


def compare_cutoffs(device: str) -> list[dict[str, Any]]:
    chosen, rows = dict(PRESETS["default"].cutoffs), []
    for name, cell in CELLS.items():
        reference = solve(cell, REFERENCE_OF.get(name, REFERENCE), device, grid_factor=2.0, mesh=(2, 2, 2))
        for cutoff in (chosen[cell.species[0]], PRESETS["default"].cutoff):
            start = time.perf_counter()
            solution = solve(cell, cutoff, device, mesh=(2, 2, 2))
            rows.append(
                {
                    "crystal": name,
                    "cutoff_hartree": cutoff,
                    "reference_hartree": REFERENCE_OF.get(name, REFERENCE),
                    "energy_hartree": solution.energy,
                    "reference_energy_hartree": reference.energy,
                    "nmae": nmae(
                        solution.volume.total, on_grid(reference.volume.total, solution.volume.grid)
                    ),
                    "seconds": time.perf_counter() - start,
                }
            )
            print(rows[-1], flush=True)
    return rows


def compare_cp2k(cube: Path, device: str) -> list[dict[str, Any]]:
    theirs, rows = read_volume(cube), []
    for cutoff, factor in ((200.0, 2.0), (130.0, 1.75)):
        ours = solve(polymorph("mgo-rocksalt"), cutoff, device, grid_factor=factor, mesh=(1, 1, 1))
        rows.append(
            {
                "crystal": "MgO, 8 atoms, gamma point",
                "cutoff_hartree": cutoff,
                "nmae": nmae(on_grid(ours.volume.total, theirs.grid), theirs.total),
                "electrons": ours.volume.electrons,
                "electrons_cp2k": theirs.electrons,
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("cutoffs", "cp2k"))
    parser.add_argument("cube", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.what == "cp2k" and arguments.cube is None:
        parser.error("cp2k needs a cube file")
    rows = (
        compare_cutoffs(arguments.device)
        if arguments.what == "cutoffs"
        else compare_cp2k(arguments.cube, arguments.device)
    )
    record = {"rows": rows, "machine": machine.describe(), "created": now()}
    arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
