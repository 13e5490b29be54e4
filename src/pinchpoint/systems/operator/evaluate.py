"""Errors of a trained operator on bodies with a known field, compared with the mean field, and plots.

The mean field predicts the mean of the training bodies everywhere: the best answer without a model.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_text
from pinchpoint.systems.common.evaluations import make_evaluation_folder, save_evaluation
from pinchpoint.systems.common.training.precision import matmuls, usable_precision
from pinchpoint.systems.operator.data.dataset import Dataset, Split, open_dataset
from pinchpoint.systems.operator.data.own.cases import Case
from pinchpoint.systems.operator.data.own.layout import Layout
from pinchpoint.systems.operator.metrics import middle_of, relative_errors
from pinchpoint.systems.operator.model.graph import graph_of
from pinchpoint.systems.operator.plots import field_pictures, picture
from pinchpoint.systems.operator.training.records import Evaluation
from pinchpoint.systems.operator.training.runs import TrainedRun, Which, load_trained
from pinchpoint.systems.operator.training.training_step import forward

DEFINITION = (
    "relative L1 = sum a |p - t| / sum a |t|; "
    "relative L2 = sqrt(sum a (p - t)^2 / sum a t^2); a: area of a panel"
)
OWN_DEFINITION = (
    f"{DEFINITION}, or of a cell; vectors are summed over their components; l1 and l2 are means over fields"
)
PLOTS = ("best", "median", "worst")
_FILES = {"errors.csv", *(f"{which}.png" for which in PLOTS)}
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
    """Measure the errors on every body of a split.

    Writes errors.csv, evaluation.json and pictures of three bodies to `output`.
    """
    start = time.perf_counter()
    device = resolve_device(device, backend("torch"))
    trained_run = load_trained(Path(run), which=which, device=device)
    # Bodies may be finer than in training, so that all edges at once might not fit.
    settings = replace(
        trained_run.settings,
        memory="flat",
        precision=usable_precision(trained_run.settings.precision, device),
    )
    trained_run = replace(trained_run, settings=settings)
    dataset = open_dataset(data)
    names = _names(dataset, trained_run, split)
    fields: dict[str, Any] = {}
    rows = []
    folder = make_evaluation_folder(output)
    with matmuls(settings.precision):
        for number, name in enumerate(names):
            row, fields[name] = evaluate_body(trained_run, dataset, name, device)
            rows.append(row)
            if progress is not None:
                progress(number + 1, len(names))
    files = [_write_table(folder / "errors.csv", rows)]
    if pictures:
        files += _draw_pictures(folder, dataset, dict(zip(names, rows, strict=True)), fields)
    l1, l2, mean_l1, mean_l2 = (
        asdict(middle_of([row[key] for row in rows])) for key in ("l1", "l2", "mean_l1", "mean_l2")
    )
    evaluation = Evaluation(
        target=str(run),
        data=str(data),
        split=split,
        step=trained_run.step,
        bodies=tuple(rows),
        l1=l1,
        l2=l2,
        mean_l1=mean_l1,
        mean_l2=mean_l2,
        factor=mean_l1["median"] / l1["median"],
        seconds=time.perf_counter() - start,
        definition=DEFINITION if dataset.layout is None else OWN_DEFINITION,
        files=tuple(file.name for file in files),
        fields=_field_errors(dataset, rows),
    )
    save_evaluation(evaluation, folder, own=_FILES)
    return evaluation


def _field_errors(dataset: Dataset, rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """The errors of each field of a user's own data; none for our own, which have one field."""
    if dataset.layout is None:
        return {}
    keys = ("l1", "l2", "mean_l1", "mean_l2")
    return {
        name: {key: asdict(middle_of([row[f"{name} {key}"] for row in rows])) for key in keys}
        for name in dataset.fields
    }


def _names(dataset: Dataset, trained_run: TrainedRun, split: Split) -> list[str]:
    if dataset.kind != trained_run.settings.kind:
        raise BadInput(
            f"The run was trained on {trained_run.settings.kind} data, but {dataset.path} contains "
            f"{dataset.kind} data.",
            hint="Name a dataset of the same kind.",
        )
    if dataset.layout is not None:
        _check_layout(dataset.layout, Layout.from_dict(trained_run.settings.layout), dataset.path)
    names = dataset.names(split)
    if not names:
        raise BadInput(
            f"{dataset.path} has no bodies in the {split} split.",
            hint=f"Choose another --split, or create bodies with operator data --{split} 16.",
        )
    return names


def _check_layout(layout: Layout, expected: Layout, path: Path) -> None:
    if layout == expected:
        _check_shapes(layout, expected, path)
        return
    own, others = layout.to_dict(), expected.to_dict()
    differ = [name for name, value in own.items() if value != others[name] and name != "generator"]
    if differ != ["moments"]:
        hint = "Make it with the same --inputs, --targets and --parameters."
    elif layout.moments:
        hint = "The run was made with an earlier version: train it again."
    else:
        hint = "The dataset was made with an earlier version: make it again in another folder."
    raise BadInput(f"{path} differs from the data of the run in: {', '.join(differ)}.", hint=hint)


def _check_shapes(layout: Layout, expected: Layout, path: Path) -> None:
    """Raise BadInput if shapes of bodies are features and were computed in another way in training."""
    if expected.has_shapes_of(layout.generator):
        return
    older = "run" if expected.generator < layout.generator else "dataset"
    hint = "Train the run again." if older == "run" else "Make the dataset again in another folder."
    raise BadInput(
        f"Place, size and shape of bodies are computed in another way in {path} than in the data of the run: "
        f"the {older} was made with an earlier version.",
        hint=hint,
    )


def evaluate_body(
    trained_run: TrainedRun, dataset: Dataset, name: str, device: str
) -> tuple[dict[str, Any], np.ndarray]:
    """The errors of a body as a table row, and the prediction on it: (F, T)."""
    sample = dataset.sample(name)
    graph = graph_of(sample.points, trained_run.config, areas=sample.areas, features=sample.features)
    with torch.no_grad():
        prediction = (
            forward(trained_run.model, sample.to(device), graph.to(device), trained_run.settings)
            .float()
            .cpu()
        )
    fields = dataset.fields
    errors = relative_errors(prediction, sample.target, sample.areas, fields)
    mean = sample.target.new_tensor(trained_run.config.target_shift).expand_as(sample.target)
    mean_errors = relative_errors(mean, sample.target, sample.areas, fields)
    row = {
        "name": dataset.label(name),
        "points": len(sample.points),
        "edges": graph.edges,
        "l1": errors.l1,
        "l2": errors.l2,
        "mean_l1": mean_errors.l1,
        "mean_l2": mean_errors.l2,
    }
    if dataset.layout is not None:
        for field in fields:
            for prefix, part in (("", errors), ("mean_", mean_errors)):
                row |= {f"{field} {prefix}l{at + 1}": part.fields[field][at] for at in (0, 1)}
    return row, prediction.numpy()


def _write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    )
    return write_text(path, text.getvalue())


def _draw_pictures(
    folder: Path, dataset: Dataset, rows: dict[str, dict[str, Any]], fields: dict[str, Any]
) -> list[Path]:
    """Draw the best, the median and the worst body; some are the same if there are fewer than three."""
    by_error = sorted(rows, key=lambda name: rows[name]["l1"])
    bodies = (by_error[0], by_error[(len(by_error) - 1) // 2], by_error[-1])
    paths, target = [], dataset.targets[0]
    for which, name in zip(PLOTS, bodies, strict=True):
        row = rows[name]
        if dataset.layout is not None:
            paths.append(
                _draw_case(folder / f"{which}.png", dataset.case(name), row, dataset.fields, fields[name])
            )
            continue
        body = dataset.body(name)
        title = f"{which} body: {row['name']}, relative L1 {row['l1']:.1%} (mean field {row['mean_l1']:.1%})"
        true, prediction = body.fields[target].numpy(), fields[name][:, 0]
        paths.append(
            picture(
                folder / f"{which}.png",
                body.mesh,
                prediction,
                true,
                title=title,
                label=LABELS.get(target, target),
            )
        )
    return paths


def _draw_case(
    path: Path, case: Case, row: dict[str, Any], fields: dict[str, tuple[int, ...]], prediction: np.ndarray
) -> Path:
    """Draw every field of a case: scalars themselves, vectors by their length."""
    true = case.sample.target.numpy()
    columns = {}
    for name, at in fields.items():
        both = [
            values[:, at[0]] if len(at) == 1 else np.linalg.norm(values[:, list(at)], axis=1)
            for values in (prediction, true)
        ]
        columns[name if len(at) == 1 else f"|{name}|"] = both[0], both[1]
    title = f"{path.stem} case: {row['name']}, relative L1 {row['l1']:.1%} (mean field {row['mean_l1']:.1%})"
    return field_pictures(path, case.sample.points.numpy(), case.picture, columns, title=title)
