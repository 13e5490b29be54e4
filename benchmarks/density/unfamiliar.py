"""Test which wrong predictions carry a note: held-out molecules, radicals, ions, crystals, unusual molecules.

    python benchmarks/density/unfamiliar.py solve REFERENCES --jobs 2      # PySCF; resumable
    python benchmarks/density/unfamiliar.py judge REFERENCES DATA -o RECORD.json
    python benchmarks/density/unfamiliar.py oxides OXIDES SCORES.json... -o RECORD.json

`solve` writes one file per system. `judge` predicts every system, compares with the references and, for the
held-out molecules, with the grids of the dataset DATA (`density data --preset wide`). A prediction is wrong
if its NMAE is above three times the mean of the held-out molecules, and caught if its note says that it is
likely wrong. Charges are not given: a structure file rarely has them. The systems of the table are counted in
two halves, too: every second one, in the order of their names. Half of the estimated errors are within the
median factor of the true ones, above or below. `oxides` counts false alarms among the cells of records of
`density score`; the usual error is then that of new cells of trained crystals, as in `estimate.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from unfamiliar_systems import System, probes_of, solve, systems  # noqa: E402

WRONG = 3  # times the usual error
POINTS = 2000  # of each reference that are compared


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
    cells = commands.add_parser("oxides")
    cells.add_argument("data", type=Path)
    cells.add_argument("scores", type=Path, nargs="+")
    cells.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "solve":
        solve_missing(args.references, jobs=args.jobs, most_atoms=args.most_atoms)
    elif args.command == "oxides":
        judge_oxides(args.data, args.scores, args.output)
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
    from pinchpoint.core.machine import describe
    from pinchpoint.core.records import now, script_command
    from pinchpoint.systems.density.training.weights import load_weights

    model = load_weights(weights)
    rows = [*_heldout_rows(model, data), *_system_rows(model, references)]
    errors = [row["nmae"] for row in rows if row["kind"] == "heldout"]
    usual = sum(errors) / len(errors)
    others = sorted((row for row in rows if row["kind"] != "heldout"), key=lambda row: row["name"])
    record = {
        "kind": "density-unfamiliar",
        "created": now(),
        "command": script_command(),
        "machine": describe(),
        "weights": weights or "packaged",
        "usual_nmae": usual,
        "median_factor": median_factor(rows),
        **count_rows(rows, usual),
        "heldout": count_rows([row for row in rows if row["kind"] == "heldout"], usual),
        "first_half": count_rows(others[::2], usual),
        "second_half": count_rows(others[1::2], usual),
        "rows": rows,
    }
    write_text(output, json.dumps(record, indent=1) + "\n")
    print(
        f"{record['wrong']} of {len(rows)} are wrong by more than {WRONG * usual:.2%}: "
        f"{record['caught']:.1%} of them are caught, with {record['false_alarms']:.1%} false alarms"
    )


def count_rows(rows: list[dict[str, Any]], usual: float) -> dict[str, Any]:
    """Count wrong predictions, those that are caught, and the others that are called wrong."""
    wrong = [row["likely_wrong"] for row in rows if row["nmae"] > WRONG * usual]
    right = [row["likely_wrong"] for row in rows if row["nmae"] <= WRONG * usual]
    return {
        "systems": len(rows),
        "wrong": len(wrong),
        "wrong_and_caught": sum(wrong),
        "right": len(right),
        "right_but_alarmed": sum(right),
        "caught": sum(wrong) / len(wrong) if wrong else None,
        "false_alarms": sum(right) / len(right) if right else None,
    }


def median_factor(rows: list[dict[str, Any]]) -> float:
    """Return the factor, at least 1, within which half of the estimates are of the true errors."""
    return math.exp(statistics.median(abs(math.log(row["estimate"] / row["nmae"])) for row in rows))


def judge_oxides(data: Path, scores: list[Path], output: Path) -> None:
    """Estimate the errors of the cells in records of `density score`, beside their true errors."""
    from pinchpoint.core.files import parse_json, write_text
    from pinchpoint.core.machine import describe
    from pinchpoint.core.records import now, script_command
    from pinchpoint.systems.density.data.dataset import open_dataset
    from pinchpoint.systems.density.training.weights import load_weights

    model, opened = load_weights("oxides"), open_dataset(data)
    rows = []
    for path in scores:
        for score in parse_json(path.read_text(encoding="utf-8"))["samples"]:
            sample = opened.sample(score["name"])
            assert sample.lattice is not None
            parts = _estimate(model, sample.species, sample.positions, sample.lattice)
            rows.append({"name": score["name"], "split": path.stem, "nmae": score["nmae"], **parts})
    assert model.estimate is not None
    usual = model.estimate.usual
    record = {
        "kind": "density-unfamiliar-oxides",
        "created": now(),
        "command": script_command(),
        "machine": describe(),
        "usual_nmae": usual,
        "median_factor": median_factor(rows),
        **count_rows(rows, usual),
        "rows": rows,
    }
    write_text(output, json.dumps(record, indent=1) + "\n")
    print({key: value for key, value in record.items() if key != "rows"})


def _heldout_rows(model: Any, data: Path) -> list[dict[str, Any]]:
    from pinchpoint.systems.density.data.dataset import open_dataset

    opened, rows = open_dataset(data, accept_unfinished=True), []
    for name in opened.names("heldout"):
        sample = opened.sample(name)
        picks = np.random.default_rng(0).permutation(len(sample.probes))[:POINTS]
        rows.append(
            _row(
                model,
                name,
                "heldout",
                (sample.species, sample.positions, None),
                (sample.probes[picks], sample.weights[picks], sample.values[picks]),
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
            picks = np.random.default_rng(0).permutation(density.size)[:POINTS]
            points = positions_of(picks, density.shape, system.lattice)
            volumes, values = np.ones(len(picks)), density.reshape(-1)[picks]
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
    from pinchpoint.systems.density.predict import PADDING_A
    from pinchpoint.systems.density.training.training_step import nmae, values_at

    species, positions, lattice = atoms
    points, volumes, values = (part[:POINTS] for part in reference)
    electrons = float(valence_electrons(species) or 1)
    sample = Sample(
        name, name, species, positions, lattice, points, values.astype(np.float32), volumes, electrons
    )
    item = item_of(sample, model.config)
    cell = np.diag(np.ptp(positions, axis=0) + 2 * PADDING_A) if lattice is None else lattice
    row = {"name": name, "kind": kind, "nmae": nmae(values_at(model, item), item)}
    row |= _estimate(model, species, positions, cell)
    print(f"{kind} {name}: {row['nmae']:.2%}, estimated {row['estimate']:.2%} {row['notes']}", flush=True)
    return row


def _estimate(
    model: Any, species: tuple[str, ...], positions: np.ndarray, cell: np.ndarray
) -> dict[str, Any]:
    """Return the estimated error of a structure and the notes of `predict` that do not depend on a grid."""
    import torch

    from pinchpoint.systems.density.data.domain import unfamiliar_notes
    from pinchpoint.systems.density.grid.periodic_images import atom_graph
    from pinchpoint.systems.density.grid.structure import Structure
    from pinchpoint.systems.density.model.error_estimate import scalars_of

    structure = Structure(cell, species, positions @ np.linalg.inv(cell))
    with torch.no_grad():
        fields = model.fields(atom_graph(structure, model.config))
    estimate = model.estimate.of(structure, scalars_of(model.config, fields))
    notes = [*estimate.notes(), *unfamiliar_notes(structure, model.domain)]
    return {"estimate": estimate.nmae, "likely_wrong": estimate.likely_wrong, "notes": notes}


if __name__ == "__main__":
    main()
