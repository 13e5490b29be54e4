"""Add an estimate of the error to packaged weights, fitted to altered training molecules.

    python benchmarks/density/estimate.py solve benchmarks/density/altered.npz    # PySCF, an hour on one core
    python benchmarks/density/estimate.py molecules DATA benchmarks/density/altered.npz
    python benchmarks/density/estimate.py oxides OXIDES

DATA is the folder of `density data --preset wide`, or `molecules.tar` unpacked; OXIDES is `oxides.tar` and
`oxides_mg.tar` unpacked into one folder. The places of training atoms and the limit of the distance come from
the training data alone. The error as a power of the distance is fitted to the altered molecules of
`altered_systems.py`: those whose bonds add up and neutral radicals at carbon give one power, all other ions,
radicals and broken bonds another, with the number of electrons. There are no altered oxides: their error has
the exponent of the molecules, and at the median distance the usual error.
"""

from __future__ import annotations

import argparse
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from altered_systems import altered_systems
from unfamiliar_systems import System, probes_of, solve_molecule

from pinchpoint.core.files import parse_json, write_bytes
from pinchpoint.systems.common.training.weight_files import write_weights
from pinchpoint.systems.density.data.batches import item_of
from pinchpoint.systems.density.data.dataset import open_dataset
from pinchpoint.systems.density.data.domain import valence_electrons
from pinchpoint.systems.density.data.molecules import molecule
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.data.valences import check_valences
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.error_estimate import (
    QUANTILE,
    ErrorEstimate,
    describe,
    mean_distance,
    scalars_of,
)
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.training.training_step import nmae, values_at
from pinchpoint.systems.density.training.weights import FOLDER, FORMAT, load_weights

SYSTEMS, PROBES = 200, 1500
LEVEL, CONVERGED = 0, 1e-6  # coarser than the data: an error of 1e-4 does not matter here
BOX_A = 8.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("solve").add_argument("references", type=Path)
    molecules = commands.add_parser("molecules")
    molecules.add_argument("data", type=Path)
    molecules.add_argument("references", type=Path)
    commands.add_parser("oxides").add_argument("data", type=Path)
    args = parser.parse_args()
    if args.command == "solve":
        solve_all(args.references)
    elif args.command == "molecules":
        store("molecules", fit_molecules(args.data, args.references), half=True)
    else:
        store("oxides", fit_oxides(args.data), half=False)


def solve_all(path: Path) -> None:
    """Compute the altered molecules and write those that converged."""
    names, densities = [], []
    for system in altered_systems(SYSTEMS):
        density, converged = solve_molecule(system, probes=PROBES, level=LEVEL, converged=CONVERGED)
        print(system.name, "" if converged else "did not converge", flush=True)
        if converged:
            names.append(system.name)
            densities.append(density.astype(np.float16))
    stream = io.BytesIO()
    np.savez_compressed(stream, names=np.array(names), densities=np.stack(densities))
    write_bytes(path, stream.getvalue())


def fit_molecules(data: Path, references: Path) -> ErrorEstimate:
    """Return the estimate for the weights of molecules.

    The usual error is that of molecules never trained on.
    """
    model, opened = load_weights("molecules"), open_dataset(data, accept_unfinished=True)
    stored = [opened.stored(name) for name in opened.names("train")]  # a sample would draw its probes again
    graphs = [(one.order.molecule, _graph(one.order.molecule, one.positions, model)) for one in stored]
    species, distances = describe(model.config, model.fields, graphs)
    usual = _about("molecules")["heldout_nmae"]
    estimate = ErrorEstimate(
        species, usual, float(np.quantile(distances, QUANTILE)), (0.0, 1.0), (0.0, 1.0, 0.0)
    )
    rows = [_measure(model, estimate, system, density) for system, density in _references(references)]
    added, broken = ([row for row in rows if row["kind"] == kind] for kind in ("adds up", "broken"))
    a, b = _fit([[1.0, row["log_distance"]] for row in added], added)
    c = _fit([[1.0, row["log_distance"], row["log_electrons"]] for row in broken], broken)
    print(f"{len(added)} systems: exp({a:.3f}) distance^{b:.3f}; {len(broken)}: {c}")
    return replace(estimate, power=(a, b), ions=(c[0], c[1], c[2]))


def fit_oxides(data: Path) -> ErrorEstimate:
    """Return the estimate for the weights of oxides, with the exponent of the molecules.

    The usual error is that of new cells of the trained crystals, not that of polymorphs never trained on.
    """
    model, opened = load_weights("oxides"), open_dataset(data)
    molecules = load_weights("molecules").estimate
    if molecules is None:
        raise SystemExit("Run `estimate.py molecules` first.")
    samples = [opened.sample(name) for name in opened.names("train")]
    graphs = [(crystal_of(sample.name), item_of(sample, model.config).atoms) for sample in samples]
    species, distances = describe(model.config, model.fields, graphs)
    usual, exponent = _about("oxides")["test_nmae"], molecules.power[1]
    shift = math.log(usual) - exponent * math.log(float(np.median(distances)))
    return ErrorEstimate(species, usual, float(np.quantile(distances, QUANTILE)), (shift, exponent))


def store(name: str, estimate: ErrorEstimate, *, half: bool) -> None:
    """Write the packaged weights again, with the estimate."""
    about = _about(name)
    about.pop("config")
    model = load_weights(name)
    write_weights(
        FOLDER / f"{name}.pt",
        {**model.state_dict(), **estimate.tensors()},
        format=FORMAT,
        config=model.config.to_json(),
        about={**about, "estimate": estimate.about()},
        half=half,
        exact=("prior",),
    )
    print(name, estimate.about())


def crystal_of(name: str) -> str:
    """Return the crystal of a sample such as `hfo2-cubic+vacancy-003`: all its cells are one group."""
    return name.rsplit("-", 1)[0].split("+")[0]


def _about(name: str) -> dict[str, Any]:
    return parse_json((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _graph(name: str, positions: np.ndarray, model: DensityModel) -> AtomGraph:
    nothing = np.zeros((0, 3)), np.zeros(0), np.zeros(0)
    return item_of(
        Sample(name, name, molecule(name).species, positions, None, *nothing, 1.0), model.config
    ).atoms


def _references(path: Path) -> list[tuple[System, np.ndarray]]:
    systems = {system.name: system for system in altered_systems(SYSTEMS)}
    with np.load(path) as arrays:
        names, densities = arrays["names"], arrays["densities"].astype(np.float32)
    return [(systems[str(name)], density) for name, density in zip(names, densities, strict=True)]


def _measure(
    model: DensityModel, estimate: ErrorEstimate, system: System, density: np.ndarray
) -> dict[str, Any]:
    """Return the error of a system, its distance, and which of the two fits it belongs to."""
    probes = probes_of(system, count=PROBES)
    electrons = float(valence_electrons(system.species) or 1)
    parts = (system.species, system.positions, None, probes.points, density, probes.weights, electrons)
    item = item_of(Sample(system.name, system.name, *parts), model.config)
    with torch.no_grad():
        scalars = scalars_of(model.config, model.fields(item.atoms))
    lattice = np.diag(np.ptp(system.positions, axis=0) + BOX_A)
    valences = check_valences(Structure(lattice, system.species, system.positions @ np.linalg.inv(lattice)))
    kind = "adds up" if not valences.atoms else "broken"
    if valences.radical:
        kind = "other" if system.charge else "adds up"
    return {
        "kind": kind,
        "log_nmae": math.log(nmae(values_at(model, item), item)),
        "log_distance": math.log(mean_distance(system.species, estimate.distances(system.species, scalars))),
        "log_electrons": math.log(electrons),
    }


def _fit(columns: list[list[float]], rows: list[dict[str, Any]]) -> list[float]:
    errors = np.array([row["log_nmae"] for row in rows])
    return [float(value) for value in np.linalg.lstsq(np.array(columns), errors, rcond=None)[0]]


if __name__ == "__main__":
    main()
