"""Errors of a trained operator on bodies whose field is known, beside those of the mean field, and pictures.

The mean field says the training bodies' mean everywhere: what one would answer without a model.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder, write_text
from pinchpoint.systems.common.folders import refuse_others
from pinchpoint.systems.common.precision import matmuls, usable
from pinchpoint.systems.operator.data.dataset import Dataset, Split, open_dataset
from pinchpoint.systems.operator.metrics import middle_of, relative_errors
from pinchpoint.systems.operator.model.graph import graph_of
from pinchpoint.systems.operator.plots import picture
from pinchpoint.systems.operator.records import Evaluation
from pinchpoint.systems.operator.runs import Trained, Which, trained
from pinchpoint.systems.operator.training_step import forward

DEFINITION = "relative L1 = sum a |p - t| / sum a |t|; relative L2 = sqrt(sum a (p - t)^2 / sum a t^2); a: area of a panel"
RECORD = "evaluation.json"
PICTURED = ("best", "median", "worst")
_FILES = {"errors.csv", *(f"{which}.png" for which in PICTURED)}
LABELS = {"cp": "Cp", "potential": "potential"}


def evaluate(
    run: str | Path,
    data: str | Path,
    output: str | Path,
    *,
    split: Split = "test",
    which: Which = "last",
    device: str = "auto",
    pictures: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Errors on every body of a split: errors.csv, evaluation.json and pictures of three bodies in `output`."""
    start = time.perf_counter()
    device = resolve_device(device, backend("torch"))
    found = trained(Path(run), which=which, device=device)
    # Bodies may be finer than those of training, where all edges at once would not fit.
    told = replace(found.settings, memory="flat", precision=usable(found.settings.precision, device))
    found = replace(found, settings=told)
    dataset = open_dataset(data)
    names = _names(dataset, found, split)
    fields: dict[str, Any] = {}
    rows = []
    refuse_others(Path(output), own=RECORD)
    folder = make_folder(output)
    earlier = _earlier(folder)
    with matmuls(told.precision):
        for number, name in enumerate(names):
            row, fields[name] = _one(found, dataset, name, device)
            rows.append(row)
            if progress is not None:
                progress(number + 1, len(names))
    files = [_table(folder / "errors.csv", rows)]
    if pictures:
        files += _pictures(folder, dataset, rows, fields)
    l1, l2, mean_l1, mean_l2 = (
        asdict(middle_of([row[key] for row in rows])) for key in ("l1", "l2", "mean_l1", "mean_l2")
    )
    made = Evaluation(
        target=str(run),
        data=str(data),
        split=split,
        step=found.step,
        bodies=tuple(rows),
        l1=l1,
        l2=l2,
        mean_l1=mean_l1,
        mean_l2=mean_l2,
        factor=mean_l1["median"] / l1["median"],
        seconds=time.perf_counter() - start,
        definition=DEFINITION,
        files=tuple(file.name for file in files),
    )
    made.save(folder / RECORD)
    for name in earlier - set(made.files):  # of bodies and a model that are not those of this evaluation
        (folder / name).unlink(missing_ok=True)
    return made


def _earlier(folder: Path) -> set[str]:
    """The files an earlier evaluation says it left in the folder."""
    try:
        files = json.loads((folder / RECORD).read_text(encoding="utf-8"))["files"]
        return {name for name in files if name in _FILES}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _names(dataset: Dataset, found: Trained, split: Split) -> list[str]:
    if dataset.kind != found.settings.kind:
        raise BadInput(
            f"the run was trained on {found.settings.kind} data, and {dataset.path} holds {dataset.kind} data",
            hint="name a data set of the same kind",
        )
    names = dataset.names(split)
    if not names:
        raise BadInput(
            f"{dataset.path} has no bodies to {split}",
            hint=f"take another --split, or make some: operator data --{split} 16",
        )
    return names


def _one(found: Trained, dataset: Dataset, name: str, device: str) -> tuple[dict[str, Any], np.ndarray]:
    """The row of a body, and what is predicted on it: (F, T)."""
    sample = dataset.sample(name)
    graph = graph_of(sample.points, found.config, areas=sample.areas, features=sample.features)
    with torch.no_grad():
        predicted = forward(found.model, sample.to(device), graph.to(device), found.settings).float().cpu()
    errors = relative_errors(predicted, sample.target, sample.areas)
    mean = sample.target.new_tensor(found.config.target_shift).expand_as(sample.target)
    without = relative_errors(mean, sample.target, sample.areas)
    row = {
        "name": name,
        "points": len(sample.points),
        "edges": graph.edges,
        "l1": errors.l1,
        "l2": errors.l2,
        "mean_l1": without.l1,
        "mean_l2": without.l2,
    }
    return row, predicted.numpy()


def _table(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    )
    return write_text(path, text.getvalue())


def _pictures(
    folder: Path, dataset: Dataset, rows: list[dict[str, Any]], fields: dict[str, Any]
) -> list[Path]:
    """The best, the median and the worst body, of which some are the same where there are fewer than three."""
    ordered = sorted(rows, key=lambda row: row["l1"])
    chosen = (ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1])
    made, target = [], dataset.targets[0]
    for which, row in zip(PICTURED, chosen, strict=True):
        body = dataset.body(row["name"])
        title = f"{which} body: {row['name']}, relative L1 {row['l1']:.1%} (mean field {row['mean_l1']:.1%})"
        true, predicted = body.fields[target].numpy(), fields[row["name"]][:, 0]
        made.append(
            picture(
                folder / f"{which}.png",
                body.mesh,
                predicted,
                true,
                title=title,
                label=LABELS.get(target, target),
            )
        )
    return made
