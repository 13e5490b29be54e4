"""Test which wrong predictions carry a note: held-out molecules, radicals, ions, crystals, unusual molecules.

    python benchmarks/density/unfamiliar.py solve REFERENCES --jobs 2      # PySCF; resumable
    python benchmarks/density/unfamiliar.py judge REFERENCES DATA -o RECORD.json

`solve` writes one file per system. `judge` predicts every system, compares with the references and, for the
held-out molecules, with the grids of the dataset DATA (`density data --preset wide`). A prediction is wrong
if its NMAE is above three times the mean of the held-out molecules. Charges are not given to `predict`: a
structure file rarely has them. Notes on the grid do not count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from unfamiliar_systems import System, probes_of, solve, systems  # noqa: E402

WRONG = 3  # times the usual error
SPACING_A = 0.25
POINTS = 6000  # of each reference that are compared
ABOUT_GRID = ("the grid is too coarse", "no effect", "skew")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    solving = commands.add_parser("solve")
    solving.add_argument("references", type=Path)
    solving.add_argument("--jobs", type=int, default=1)
    solving.add_argument("--most-atoms", type=int, default=10_000, help="leave out larger systems")
    judging = commands.add_parser("judge")
    judging.add_argument("references", type=Path)
    judging.add_argument("data", type=Path)
    judging.add_argument("-o", "--output", type=Path, required=True)
    judging.add_argument("--weights", default=None, help="a run or a file; default: packaged")
    args = parser.parse_args()
    if args.command == "solve":
        solve_missing(args.references, jobs=args.jobs, most_atoms=args.most_atoms)
    else:
        judge(args.references, args.data, args.output, weights=args.weights)


def solve_missing(folder: Path, *, jobs: int, most_atoms: int) -> None:
    """Compute the references that the folder lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [
        (system, folder / f"{system.name}.npz")
        for system in systems()
        if len(system.species) <= most_atoms and not (folder / f"{system.name}.npz").exists()
    ]
    # Crystals and large molecules first: they take longest.
    missing.sort(key=lambda one: (one[0].lattice is None, -len(one[0].species)))
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for done, text in enumerate(pool.imap_unordered(_store, missing), start=1):
            print(f"{done} of {len(missing)}: {text}", flush=True)


def _store(task: tuple[System, Path]) -> str:
    system, path = task
    start = time.perf_counter()
    density, converged = solve(system)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez_compressed(file, density=density, converged=converged)
    os.replace(partial, path)
    return f"{system.name}, {time.perf_counter() - start:.1f} s{'' if converged else ', not converged'}"


def judge(references: Path, data: Path, output: Path, *, weights: str | None) -> None:
    """Predict all systems, count the wrong predictions with and without a note, and write the record."""
    from pinchpoint.core.files import write_text
    from pinchpoint.core.records import now
    from pinchpoint.systems.density.training.weights import load_weights

    model = load_weights(weights)
    rows = [*_heldout_rows(model, data), *_system_rows(model, references)]
    errors = [row["nmae"] for row in rows if row["kind"] == "heldout"]
    usual = sum(errors) / len(errors)
    wrong = [row for row in rows if row["nmae"] > WRONG * usual]
    right = [row for row in rows if row["nmae"] <= WRONG * usual]
    record = {
        "kind": "density-unfamiliar",
        "created": now(),
        "command": "python benchmarks/density/unfamiliar.py judge REFERENCES DATA",
        "weights": weights or "packaged",
        "usual_nmae": usual,
        "systems": len(rows),
        "wrong": len(wrong),
        "caught": sum(bool(row["notes"]) for row in wrong) / max(1, len(wrong)),
        "false_alarms": sum(bool(row["notes"]) for row in right) / max(1, len(right)),
        "rows": rows,
    }
    write_text(output, json.dumps(record, indent=1) + "\n")
    print(
        f"{len(wrong)} of {len(rows)} are wrong by more than {WRONG * usual:.2%}: {record['caught']:.1%} of "
        f"them have a note, as have {record['false_alarms']:.1%} of the others"
    )


def _heldout_rows(model: Any, data: Path) -> list[dict[str, Any]]:
    from pinchpoint.systems.density.data.dataset import open_dataset

    opened, rows = open_dataset(data), []
    for name in opened.names("heldout"):
        sample = opened.sample(name)
        chosen = np.random.default_rng(0).permutation(len(sample.probes))[:POINTS]
        rows.append(
            _row(
                model,
                name,
                "heldout",
                (sample.species, sample.positions, None),
                (sample.probes[chosen], sample.weights[chosen], sample.values[chosen]),
            )
        )
    return rows


def _system_rows(model: Any, references: Path) -> list[dict[str, Any]]:
    from pinchpoint.systems.density.data.probes import positions_of

    rows = []
    for system in systems():
        path = references / f"{system.name}.npz"
        if not path.exists():
            continue
        with np.load(path) as arrays:
            density, converged = arrays["density"], bool(arrays["converged"])
        if not converged:
            continue
        if system.lattice is None:
            probes = probes_of(system)
            points, volumes, values = probes.points, probes.weights, density
        else:
            chosen = np.random.default_rng(0).permutation(density.size)[:POINTS]
            points = positions_of(chosen, density.shape, system.lattice)
            volumes, values = np.ones(len(chosen)), density.reshape(-1)[chosen]
        parts = (system.species, system.positions, system.lattice)
        rows.append(_row(model, system.name, system.kind, parts, (points, volumes, values)))
    return rows


def _row(
    model: Any,
    name: str,
    kind: str,
    atoms: tuple[tuple[str, ...], np.ndarray, np.ndarray | None],
    reference: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> dict[str, Any]:
    """Return the error of a prediction and its notes. reference: points, their weights, and the densities."""
    from pinchpoint.systems.density.data.batches import item_of
    from pinchpoint.systems.density.data.domain import valence_electrons
    from pinchpoint.systems.density.data.sample import Sample
    from pinchpoint.systems.density.grid.structure import Structure
    from pinchpoint.systems.density.predict import PADDING_A, predict
    from pinchpoint.systems.density.training.training_step import nmae, values_at

    species, positions, lattice = atoms
    points, volumes, values = reference
    electrons = float(valence_electrons(species) or 1)
    sample = Sample(
        name, name, species, positions, lattice, points, values.astype(np.float32), volumes, electrons
    )
    item = item_of(sample, model.config)
    cell = np.diag(np.ptp(positions, axis=0) + 2 * PADDING_A) if lattice is None else lattice
    inside = (positions - (positions.min(axis=0) - PADDING_A)) if lattice is None else positions
    structure = Structure(cell, species, inside @ np.linalg.inv(cell))
    prediction = predict(structure, weights=model, spacing_a=SPACING_A, device="cpu")
    notes = [note for note in prediction.notes if not any(text in note for text in ABOUT_GRID)]
    row = {"name": name, "kind": kind, "nmae": nmae(values_at(model, item), item), "notes": notes}
    print(f"{kind} {name}: {row['nmae']:.2%}, {len(notes)} notes", flush=True)
    return row


if __name__ == "__main__":
    main()
