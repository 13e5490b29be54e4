"""Errors of a model on every sample of a data set's split, with those of superposed spherical atoms beside them.

Superposed atoms are there where all species have a table, errors of the spin where model and sample have one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.atomic import AtomTable, load_table, superpose
from pinchpoint.systems.density.data.batches import item_of
from pinchpoint.systems.density.data.dataset import Dataset, Split, open_dataset
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.records import Scores
from pinchpoint.systems.density.training_step import values_at
from pinchpoint.systems.density.weights import for_inference


def evaluate_set(
    weights: str | Path | DensityModel | None,
    dataset: str | Path | Dataset,
    split: Split = "test",
    *,
    device: str = "auto",
    chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """NMAE of every sample of a split, their mean, and the same of superposed atoms.

    weights: a run, a file, a model, or None for those of the package. chunk: probes at one time.
    """
    if chunk is not None and chunk < 1:
        raise BadInput(f"a chunk of {chunk} probes", hint="give a chunk of at least 1 probe")
    start = time.perf_counter()
    device = resolve_device(device, backend("torch"))
    model = for_inference(weights, device)
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    names = data.names(split)
    if not names:
        raise BadInput(
            f"the {split} split of {data.path} has no samples",
            hint="take another --split, or make some: density data",
        )
    rows: list[dict[str, Any]] = []
    table = load_table()
    for number, name in enumerate(names):
        sample = data.sample(name)
        found = (
            values_at(model, item_of(sample, model.config, device=device), chunk=chunk).double().cpu().numpy()
        )
        known = set(sample.species) <= set(table.species)
        rows.append(
            {
                "name": name,
                "molecule": sample.molecule,
                "probes": len(sample.probes),
                "nmae": _nmae(found[:, 0], sample.values, sample.weights),
                "superposition": _superposed(sample, table) if known else None,
                "electrons": sample.electrons,
                "integral": float((sample.weights * found[:, 0]).sum()),
            }
        )
        if sample.spin is not None and model.config.spin and np.abs(sample.spin).max() > 0:
            rows[-1]["spin_nmae"] = _nmae(found[:, 1], sample.spin, sample.weights)
        if progress is not None:
            progress(number + 1, len(names))
    named = (
        "a model" if isinstance(weights, DensityModel) else "packaged" if weights is None else str(weights)
    )
    return Scores(
        target=named,
        data=str(data.path),
        split=split,
        samples=tuple(rows),
        nmae=sum(row["nmae"] for row in rows) / len(rows),
        superposition=_mean(rows, "superposition"),
        spin_nmae=_mean(rows, "spin_nmae"),
        seconds=time.perf_counter() - start,
        device=device,
    )


def _superposed(sample: Sample, table: AtomTable) -> float:
    atoms = superpose(sample.species, sample.positions, sample.probes, sample.lattice, table=table)
    return _nmae(atoms, sample.values, sample.weights)


def _nmae(values: np.ndarray, true: np.ndarray, weights: np.ndarray) -> float:
    """values, true, weights: (P,)."""
    true = true.astype(np.float64)
    return float((weights * np.abs(values - true)).sum() / (weights * np.abs(true)).sum())


def _mean(rows: list[dict[str, Any]], key: str) -> float | None:
    """Over the samples that have it."""
    found = [row[key] for row in rows if row.get(key) is not None]
    return sum(found) / len(found) if found else None
