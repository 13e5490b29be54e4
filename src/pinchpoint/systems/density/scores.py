"""Errors of a model on every sample of a split of a dataset, compared with superposed spherical atoms.

Superposed atoms are scored if all species have a table, spin if both the model and the sample have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_seconds
from pinchpoint.systems.density.data.atomic import AtomTable, load_table, superpose
from pinchpoint.systems.density.data.batches import item_of
from pinchpoint.systems.density.data.dataset import Dataset, Split, open_dataset, unfinished_notes
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.training.training_step import values_at
from pinchpoint.systems.density.training.weights import for_inference

_ANY = (None, "packaged")  # weights that depend on the species of the samples


@dataclass(frozen=True)
class Scores(Record):
    """The errors of a model on the samples of one split."""

    kind: ClassVar[str] = "density-scores"
    target: str  # name of the weights
    data: str
    split: str
    # For each sample: "name", "molecule", "probes", "nmae", "superposition", "electrons", "integral".
    samples: tuple[dict[str, Any], ...]
    nmae: float  # mean over the samples
    # Mean NMAE of superposed spherical atoms, over the samples whose species have a table.
    superposition: float | None
    seconds: float
    device: str
    notes: tuple[str, ...] = ()  # warnings for the user
    spin_nmae: float | None = None  # mean over the samples with a spin density, if the model has one
    definition: str = "NMAE = sum w |predicted - true| / sum w |true|; w: the volume a probe stands for"
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def of_molecules(self) -> dict[str, tuple[float, float | None]]:
        """Return the mean NMAE of each molecule, and that of superposed atoms."""
        by_molecule: dict[str, list[dict[str, Any]]] = {}
        for sample in self.samples:
            by_molecule.setdefault(sample["molecule"], []).append(sample)
        return {
            name: (
                sum(one["nmae"] for one in own) / len(own),
                None
                if own[0]["superposition"] is None
                else sum(one["superposition"] for one in own) / len(own),
            )
            for name, own in by_molecule.items()
        }

    def summary(self) -> list[tuple[str, str]]:
        worst = max(self.samples, key=lambda sample: sample["nmae"])
        off = max(abs(sample["integral"] / sample["electrons"] - 1) for sample in self.samples)
        rows = [
            ("weights", self.target),
            ("samples", f"{len(self.samples):,} of {self.data}, {self.split}"),
            ("NMAE", f"{self.nmae:.3%} mean; {worst['nmae']:.3%} at worst ({worst['name']})"),
        ]
        if self.spin_nmae is not None:
            rows.append(("spin NMAE", f"{self.spin_nmae:.3%} mean"))
        if self.superposition is not None:
            rows.append(("superposed atoms", f"{self.superposition:.3%} mean"))
        rows.append(("electrons", f"off by at most {off:.3%}"))
        for name, (own, other) in self.of_molecules().items():
            rows.append((name, f"{own:.3%}" + ("" if other is None else f"   superposed atoms {other:.3%}")))
        rows.append(("time", f"{show_seconds(self.seconds)} on {self.device}"))
        return [*rows, *(("note", note) for note in self.notes)]


def evaluate_set(
    weights: str | Path | DensityModel | None,
    dataset: str | Path | Dataset,
    split: Split = "test",
    *,
    device: str = "auto",
    chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Return the NMAE of every sample of a split and their mean, with the same for superposed atoms.

    weights: a run, a file, a model, or None for the packaged weights. chunk: probes processed together.
    """
    if chunk is not None and chunk < 1:
        raise BadInput(f"A chunk cannot have {chunk} probes.", hint="Set --chunk to at least 1.")
    start = time.perf_counter()
    device = resolve_device(device, backend("torch"))
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset, accept_unfinished=True)
    names = data.names(split)
    species = {symbol for name in names for symbol in data.sample(name).species} if weights in _ANY else None
    model = for_inference(weights, device, species=species)
    if not names:
        raise BadInput(
            f"The {split} split of {data.path} has no samples.",
            hint="Choose another --split, or make samples with `pinchpoint density data`.",
        )
    rows: list[dict[str, Any]] = []
    table = load_table()
    for number, name in enumerate(names):
        sample = data.sample(name)
        values = (
            values_at(model, item_of(sample, model.config, device=device), chunk=chunk).double().cpu().numpy()
        )
        has_table = set(sample.species) <= set(table.species)
        rows.append(
            {
                "name": name,
                "molecule": sample.molecule,
                "probes": len(sample.probes),
                "nmae": _nmae(values[:, 0], sample.values, sample.weights),
                "superposition": _superposition_nmae(sample, table) if has_table else None,
                "electrons": sample.electrons,
                "integral": float((sample.weights * values[:, 0]).sum()),
            }
        )
        if sample.spin is not None and model.config.spin and np.abs(sample.spin).max() > 0:
            rows[-1]["spin_nmae"] = _nmae(values[:, 1], sample.spin, sample.weights)
        if progress is not None:
            progress(number + 1, len(names))
    weights_name = (
        "a model" if isinstance(weights, DensityModel) else "packaged" if weights is None else str(weights)
    )
    return Scores(
        target=weights_name,
        data=str(data.path),
        split=split,
        samples=tuple(rows),
        nmae=sum(row["nmae"] for row in rows) / len(rows),
        superposition=_mean(rows, "superposition"),
        spin_nmae=_mean(rows, "spin_nmae"),
        seconds=time.perf_counter() - start,
        device=device,
        notes=unfinished_notes(data, split, use="the scores are of the others"),
    )


def _superposition_nmae(sample: Sample, table: AtomTable) -> float:
    atoms = superpose(sample.species, sample.positions, sample.probes, sample.lattice, table=table)
    return _nmae(atoms, sample.values, sample.weights)


def _nmae(values: np.ndarray, true: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted NMAE. values, true, weights: (P,)."""
    true = true.astype(np.float64)
    return float((weights * np.abs(values - true)).sum() / (weights * np.abs(true)).sum())


def _mean(rows: list[dict[str, Any]], key: str) -> float | None:
    """Return the mean over the samples that have the key, or None."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None
