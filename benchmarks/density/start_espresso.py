"""Count the SCF iterations of Quantum ESPRESSO from three starts: its own, superposed atoms, and our density.

    python benchmarks/density/start_espresso.py --systems sio2-stishovite --box-a 6 --cutoff-ry 120
    --threshold-ry 1e-6 -o benchmarks/results/density_start_espresso_cpu.json

A system is a rattled molecule in a cubic box, or a strained and rattled cell of an oxide, with the
pseudopotentials and k-points of our data. The record is written after every system, and the
same command continues it.
pw.x (Debian's package `quantum-espresso`) has no atomic densities for GTH pseudopotentials: its own start is
a Gaussian for each atom. The other two starts replace the coefficients of `charge-density.dat`, which pw.x
reads with `startingpot = 'file'`. All runs begin with random orbitals.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.data.atomic import superpose
from pinchpoint.systems.density.data.crystals.gth import Potential, read_potentials, table_path
from pinchpoint.systems.density.data.crystals.plane_waves import mesh_of
from pinchpoint.systems.density.data.crystals.polymorphs import draw_cell
from pinchpoint.systems.density.data.molecules import draw_geometry, molecule, names
from pinchpoint.systems.density.espresso_start import read_waves, write_start
from pinchpoint.systems.density.files.volume import Volume, grid_points
from pinchpoint.systems.density.grid.elements import SYMBOLS
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.predict import predict

PREFIX = "start"
DECIDING = ("kind", "number", "box_a", "cutoff_ry", "threshold_ry")  # equal where a record is continued


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--systems", nargs="+", default=["sio2-quartz", "water"], help="molecules or oxides")
    parser.add_argument("--number", type=int, default=900_000, help="of the geometry, drawn with seed 0")
    parser.add_argument("--box-a", type=float, default=8.0, help="of a molecule")
    parser.add_argument("--cutoff-ry", type=float, default=120.0)
    parser.add_argument("--threshold-ry", type=float, default=1e-8)
    parser.add_argument("--program", default="pw.x")
    args = parser.parse_args()
    check_output(args.output)
    record: dict[str, Any] = {
        "kind": "density-start-espresso",
        "created": now(),
        "command": script_command(),
        "machine": describe(),
        "number": args.number,
        "box_a": args.box_a,
        "cutoff_ry": args.cutoff_ry,
        "threshold_ry": args.threshold_ry,
        "systems": [],
    }
    if args.output.exists():
        before = json.loads(args.output.read_text(encoding="utf-8"))
        if any(before.get(key) != record[key] for key in DECIDING):
            raise SystemExit(f"{args.output} is a record with other settings; give another -o.")
        record["systems"] = before["systems"]
    for name in args.systems:
        if name in [row["name"] for row in record["systems"]]:
            continue
        structure = structure_of(name, number=args.number, box_a=args.box_a)
        with tempfile.TemporaryDirectory() as folder:
            rows = compare(structure, Path(folder), args)
        about = {"formula": structure.formula, "atoms": len(structure.species)}
        record["systems"].append(
            {"name": name, **about, "kpoints": mesh_of(structure.lattice), "starts": rows}
        )
        write_text(args.output, json.dumps(record, indent=1) + "\n")
        print(name, {key: row["iterations"] for key, row in rows.items()}, flush=True)


def structure_of(name: str, *, number: int, box_a: float) -> Structure:
    """Return a rattled molecule in the middle of a cubic box, or a strained and rattled cell of an oxide."""
    if name not in names():
        return draw_cell(name, seed=0, number=number)
    geometry = draw_geometry(molecule(name), seed=0, number=number)
    return Structure(np.eye(3) * box_a, geometry.species, geometry.positions / box_a + 0.5)


def compare(structure: Structure, folder: Path, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run pw.x from all starts; return their iterations, energies and first estimates of the error."""
    for symbol, potential in read_potentials(table_path(), set(structure.species)).items():
        write_text(folder / f"{symbol}.gth", pseudopotential(potential))
    rows = {"default": run(structure, folder, args, start="atomic")}
    saved = folder / f"{PREFIX}.save" / "charge-density.dat"
    waves = read_waves(saved)
    nx, ny, nz = (int(n) for n in 2 * np.abs(waves.indices).max(axis=0) + 2)
    grid = nx, ny, nz
    points = grid_points(grid) @ structure.lattice
    atoms = superpose(structure.species, structure.cartesian, points, structure.lattice)
    begin = time.perf_counter()
    ours = predict(structure, grid=grid, device="cpu").volume
    seconds = time.perf_counter() - begin
    for key, volume in (("superposed", Volume(structure, atoms.reshape(grid))), ("ours", ours)):
        write_start(volume, saved)
        rows[key] = run(structure, folder, args, start="file")
    rows["ours"]["predict_s"] = round(seconds, 1)
    return rows


def run(structure: Structure, folder: Path, args: argparse.Namespace, *, start: str) -> dict[str, Any]:
    """Run pw.x and read its output."""
    program = shutil.which(args.program)
    if program is None:
        raise SystemExit(f"{args.program} is not installed (Debian: apt install quantum-espresso).")
    write_text(folder / "pw.in", input_text(structure, folder, args, start=start))
    begin = time.perf_counter()
    done = subprocess.run([program, "-in", "pw.in"], cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    converged = re.search(r"convergence has been achieved in\s+(\d+) iterations", done.stdout)
    if converged is None:
        raise SystemExit(f"pw.x did not converge:\n{done.stdout[-2000:]}\n{done.stderr[-1000:]}")
    accuracies = re.findall(r"estimated scf accuracy\s+<\s+(\S+) Ry", done.stdout)
    row = {
        "iterations": int(converged[1]),
        "energy_ry": float(re.findall(r"!\s+total energy\s+=\s+(\S+) Ry", done.stdout)[-1]),
        "accuracy_ry": [float(value) for value in accuracies],
        "seconds": round(seconds, 1),
    }
    print(start, row, flush=True)
    return row


def input_text(structure: Structure, folder: Path, args: argparse.Namespace, *, start: str) -> str:
    """Return the input of pw.x."""
    kinds = list(dict.fromkeys(structure.species))
    lines = [
        "&control",
        f"  prefix = '{PREFIX}', outdir = '{folder}', pseudo_dir = '{folder}', disk_io = 'low'",
        "/",
        "&system",
        f"  ibrav = 0, nat = {len(structure.species)}, ntyp = {len(kinds)}, ecutwfc = {args.cutoff_ry}",
        "  occupations = 'fixed', nosym = .true.",
        "/",
        "&electrons",
        f"  conv_thr = {args.threshold_ry}, startingpot = '{start}', startingwfc = 'random'",
        "/",
        "ATOMIC_SPECIES",
        *(f"{symbol} 1.0 {symbol}.gth" for symbol in kinds),
        "CELL_PARAMETERS bohr",
        *(" ".join(f"{value:.12f}" for value in row) for row in structure.lattice / BOHR_A),
        "ATOMIC_POSITIONS crystal",
        *(
            f"{symbol} " + " ".join(f"{value:.12f}" for value in place)
            for symbol, place in zip(structure.species, structure.positions, strict=True)
        ),
        "K_POINTS automatic",
        " ".join(str(n) for n in mesh_of(structure.lattice)) + " 0 0 0",
    ]
    return "\n".join(lines) + "\n"


def pseudopotential(potential: Potential) -> str:
    """Return a potential in the format that pw.x reads from *.gth files: ABINIT's, code 10."""
    top = max((channel.degree for channel in potential.channels), default=0)
    lines = [
        f"GTH-PBE {potential.symbol}",
        f"{SYMBOLS.index(potential.symbol) + 1} {potential.valence} 1",
        f"10 11 {top} 0 2001 0",
        f"{potential.radius} {len(potential.coefficients)} {' '.join(map(str, potential.coefficients))}",
        str(top + 1),
    ]
    channels = {channel.degree: channel for channel in potential.channels}
    for degree in range(top + 1):
        channel = channels.get(degree)
        if channel is None:
            lines.append("0.0 0")
            continue
        strengths, size = channel.strengths, len(channel.strengths)
        rows = [" ".join(map(str, strengths[row, row:])) for row in range(size)]
        lines += [f"{channel.radius} {size} {rows[0]}", *rows[1:]]
        if degree:  # spin-orbit coupling, which is left out
            lines += [" ".join(["0.0"] * (size - row)) for row in range(size)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
