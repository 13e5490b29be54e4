"""Count the SCF iterations of PySCF from its default start and from a predicted density.

    python benchmarks/density/start_pyscf.py -o benchmarks/results/density_start_pyscf_cpu.json

The record is written after every system; the same command continues one that was stopped.

The systems are the held-out molecules of the preset `wide` with the fewest atoms, at the first of their test
geometries: PBE, GTH pseudopotentials, and the basis of the datasets. Both starts use the same grid, DIIS and
threshold. Building our start takes one diagonalisation, which is not an iteration of PySCF and is counted
apart.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import check_output, parse_json, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command
from pinchpoint.systems.density.data.data_settings import FIRST_TEST
from pinchpoint.systems.density.data.molecules import WIDE_HELD_OUT, draw_geometry, molecule
from pinchpoint.systems.density.data.quantum import (
    BASIS,
    CONVERGED,
    FUNCTIONAL,
    LEVEL,
    PSEUDO,
    store_orbitals,
)
from pinchpoint.systems.density.pyscf_start import initial_matrix


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--systems", type=int, default=20)
    parser.add_argument("--weights", type=Path, default=None, help="a run or a file; default: packaged")
    args = parser.parse_args()
    names = sorted(WIDE_HELD_OUT, key=lambda name: (len(molecule(name).species), name))[: args.systems]
    check_output(args.output)
    rows = finished_rows(args.output, args.weights)
    for name in names:
        if name not in {row["name"] for row in rows}:
            rows.append(count_iterations(name, args.weights))
            print(rows[-1], flush=True)
            write_record(args.output, rows, args.weights)
    write_record(args.output, rows, args.weights)
    record = parse_json(args.output.read_text(encoding="utf-8"))
    print(
        f"{record['iterations_default']} iterations by default, {record['iterations_ours']} from our density"
    )


def finished_rows(path: Path, weights: Path | None) -> list[dict[str, Any]]:
    """Return the systems of a record of this script that was stopped."""
    if not path.exists():
        return []
    record = parse_json(path.read_text(encoding="utf-8"))
    return record["systems"] if record["weights"] == _name(weights) else []


def write_record(path: Path, rows: list[dict[str, Any]], weights: Path | None) -> None:
    default, ours = (sum(row[key] for row in rows) for key in ("default", "ours"))
    record = {
        "kind": "density-start-pyscf",
        "created": now(),
        "command": script_command(),
        "machine": describe(),
        "weights": _name(weights),
        "threshold_hartree": CONVERGED,
        "iterations_default": default,
        "iterations_ours": ours,
        "saved": 1 - ours / default,
        "all_converged": all(row["default_converged"] and row["ours_converged"] for row in rows),
        "systems": rows,
    }
    write_text(path, json.dumps(record, indent=1) + "\n")


def _name(weights: Path | None) -> str:
    return "packaged" if weights is None else str(weights)


def count_iterations(name: str, weights: Path | None) -> dict[str, Any]:
    """Return the iterations from both starts, and how far each start's energy is above the ground state."""
    from pyscf import dft, gto

    geometry = draw_geometry(molecule(name), seed=0, number=2 * FIRST_TEST)
    atoms = list(zip(geometry.species, geometry.positions.tolist(), strict=True))
    mol = gto.M(atom=atoms, unit="angstrom", basis=BASIS, pseudo=PSEUDO, verbose=0)
    begin = time.perf_counter()
    ours = initial_matrix(mol, weights=weights)
    seconds = time.perf_counter() - begin
    row: dict[str, Any] = {
        "name": name,
        "atoms": mol.natm,
        "functions": mol.nao,
        "start_s": round(seconds, 2),
    }
    for key, start in (("default", None), ("ours", ours)):
        field = dft.RKS(mol, xc=FUNCTIONAL)
        field.grids.level = LEVEL
        field.conv_tol = CONVERGED
        store_orbitals(field)
        matrix = np.asarray(field.get_init_guess()) if start is None else start
        above = float(field.energy_tot(matrix))
        begin = time.perf_counter()
        field.kernel(matrix)
        row |= {
            key: int(field.cycles),
            f"{key}_converged": bool(field.converged),
            f"{key}_above_hartree": above - float(field.e_tot),
            f"{key}_s": round(time.perf_counter() - begin, 2),
        }
    return row


if __name__ == "__main__":
    main()
