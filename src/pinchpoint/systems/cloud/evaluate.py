"""Evaluation of a trained network at several densities: test scenes thinned in three ways, as a table and a
plot.

`uniform` keeps points uniformly at random, `one-per-cell` keeps one point of every grid cell, and `distance`
keeps fewer points far from a corner. The remaining points are classified and scored, next to the score of
always predicting the most frequent training class.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_text
from pinchpoint.kit.segments.cell_size import CellSize, cell_edges, plain_cell
from pinchpoint.systems.cloud.data import eval_subsampling
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.data.sources import Source, Split, open_source
from pinchpoint.systems.cloud.metrics import confusion, predict_everywhere, scores_of
from pinchpoint.systems.cloud.model.model import predict_labels
from pinchpoint.systems.cloud.model.target_head import target_cosines
from pinchpoint.systems.cloud.plots import plot
from pinchpoint.systems.cloud.training.records import Evaluation
from pinchpoint.systems.cloud.training.runs import TrainedRun, Which
from pinchpoint.systems.cloud.training.weights import load_weights
from pinchpoint.systems.common.evaluations import make_evaluation_folder, save_evaluation
from pinchpoint.systems.common.training.precision import autocast, matmuls, usable_precision

DEFINITION = (
    "IoU = correct / (true or predicted points of the class), over the points of all scenes;"
    " mIoU: mean over the classes that occur"
)
TABLE, PLOT = "scores.csv", "scores.png"
DENSITIES = (1.0, 0.5, 0.25, 0.1, 0.05)
Thinning = tuple[str, float | None]


def evaluate(
    run: str | Path,
    data: str | Path,
    output: str | Path,
    *,
    split: Split = "test",
    which: Which = "last",
    device: str = "auto",
    densities: Sequence[float] = DENSITIES,
    cell: CellSize | None = None,
    seed: int = 0,
    budget: str | int | None = None,
    pictures: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score a split at every density and write scores.csv, evaluation.json and scores.png to `output`.

    cell: edge or edges of the one-per-cell grid (default: as in training); budget: bytes while points stream
    through the network.
    """
    start = time.perf_counter()
    device = resolve_device(device, backend("torch"))
    trained_run = load_weights(run, which=which, device=device)
    target = trained_run.settings.target
    source = open_source(data, ignore=trained_run.settings.ignore, target=target)
    names = _names(source, trained_run, split)
    thinnings = _thinnings(densities)
    if cell is None:
        cell = trained_run.settings.cell or trained_run.config.cell
    cell_edges(cell)  # before anything is computed
    folder = make_evaluation_folder(output)
    classes = len(trained_run.settings.classes) if source.classes else 0
    cosines = {thinning: np.zeros(2) for thinning in thinnings}  # their sum, and the number of points
    counts = {thinning: np.zeros((classes, classes), dtype=np.int64) for thinning in thinnings}
    points_kept, total, done = dict.fromkeys(thinnings, 0), 0, 0
    precision = usable_precision(trained_run.settings.precision, device)
    with matmuls(precision), autocast(precision, device):
        for number, name in enumerate(names):
            scene = source.scene(name)
            total += scene.points
            for thinning in thinnings:
                part = _thinned(scene, thinning, cell=cell, seed=seed * 1_000_003 + number)
                if classes and part.labels is not None:
                    predictions = predict_labels(trained_run.model, part, budget=budget, device=device)
                    counts[thinning] += confusion(part.labels, predictions, classes)
                if target:
                    values = target_cosines(trained_run.model, part, device=device)
                    cosines[thinning] += float(values.sum()), len(values)
                points_kept[thinning] += part.points
                done += 1
                if progress is not None:
                    progress(done, len(names) * len(thinnings))
    if target and not sum(int(one.sum()) for one in counts.values()):
        classes = 0  # no scene of this split has labels
    majority = int(np.argmax(trained_run.settings.frequency)) if classes else None
    rows = [
        _row(
            thinning,
            counts[thinning],
            points_kept[thinning] / total,
            majority,
            cosines[thinning] if target else None,
        )
        for thinning in thinnings
    ]
    files = [_table(folder / TABLE, rows, trained_run.settings.classes if classes else ())]
    majority_name = "" if majority is None else trained_run.settings.classes[majority]
    title = f"{Path(run).name}, step {trained_run.step:,}: {len(names):,} {split} scenes"
    if pictures and classes:
        files.append(plot(folder / PLOT, rows, title=title, majority=majority_name))
    record = Evaluation(
        target=str(run),
        data=str(data),
        split=split,
        step=trained_run.step,
        scenes=len(names),
        classes=tuple(trained_run.settings.classes),
        rows=tuple(rows),
        majority=majority_name,
        cell=plain_cell(cell),
        seed=seed,
        seconds=time.perf_counter() - start,
        definition=DEFINITION,
        files=tuple(file.name for file in files),
    )
    save_evaluation(record, folder, own=(TABLE, PLOT))
    return record


def _thinnings(densities: Sequence[float]) -> list[Thinning]:
    wrong = [density for density in densities if not 0 < density <= 1]
    if wrong or not densities:
        raise BadInput(
            f"The densities {', '.join(f'{d:g}' for d in densities) or '(none)'} are not all above 0"
            " and at most 1.",
            hint="Give at least one density, such as 0.5.",
        )
    thinner = [("distance", density) for density in densities if density < 1]
    return [*(("uniform", density) for density in densities), ("one-per-cell", None), *thinner]


def _thinned(scene: Scene, thinning: Thinning, *, cell: CellSize, seed: int) -> Scene:
    kind, density = thinning
    if density is None:
        return scene.take(eval_subsampling.one_per_cell(scene, cell, seed=seed))
    if density == 1:
        return scene
    draw = eval_subsampling.uniform if kind == "uniform" else eval_subsampling.by_distance
    return scene.take(draw(scene, density, seed=seed))


def _row(
    thinning: Thinning,
    counts: np.ndarray,
    points_kept: float,
    majority: int | None,
    cosines: np.ndarray | None,
) -> dict[str, Any]:
    """Return the scores of a thinning.

    majority: None without classes; cosines: (2,), their sum, and the number of points with a target; None
    without a target.
    """
    row: dict[str, Any] = {"thinning": thinning[0], "density": thinning[1], "kept": points_kept}
    cosine: dict[str, float | None] = {}
    if cosines is not None:
        cosine["cosine"] = float(cosines[0] / cosines[1]) if cosines[1] else None
    if majority is None:
        return row | {"points": 0 if cosines is None else int(cosines[1])} | cosine
    scores, majority_scores = scores_of(counts), scores_of(predict_everywhere(majority, counts))
    return row | {
        "points": scores.points,
        **cosine,
        "miou": scores.miou,
        "accuracy": scores.accuracy,
        "majority_miou": majority_scores.miou,
        "majority_accuracy": majority_scores.accuracy,
        "iou": list(scores.iou),
    }


def _names(source: Source, trained_run: TrainedRun, split: Split) -> list[str]:
    expected_classes = list(trained_run.settings.classes)
    # Unnamed classes are numbered up to the largest label in the files: a folder may lack the last ones.
    if (
        list(source.classes)
        == [str(number) for number in range(len(source.classes))]
        == expected_classes[: len(source.classes)]
    ):
        expected_classes = list(source.classes)
    if trained_run.settings.target and not source.classes:
        expected_classes = []  # scenes without labels, whose targets are scored
    for what, of_run, of_data in (
        ("features", trained_run.settings.features, source.features),
        ("classes", expected_classes, source.classes),
    ):
        if list(of_run) != list(of_data):
            raise BadInput(
                f"The run was trained with the {what} {', '.join(of_run)},"
                f" but {source.path} has {', '.join(of_data)}.",
                hint="Give a dataset with the same features and classes.",
            )
    if split not in ("train", "test"):
        raise BadInput(f"The split {split!r} is unknown.", hint="Use train or test.")
    names = source.names(split)
    if not names:
        raise BadInput(
            f"{source.path} has no {split} scenes.",
            hint=f"Use another --split, or make some with `cloud data --{split} 4`.",
        )
    return names


def _table(path: Path, rows: list[dict[str, Any]], classes: Sequence[str]) -> Path:
    text = io.StringIO()
    plain = [key for key in rows[0] if key != "iou"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*plain, *(f"iou {name}" for name in classes)])
    for row in rows:
        writer.writerow([_cell(row[key]) for key in plain] + [_cell(value) for value in row.get("iou", ())])
    return write_text(path, text.getvalue())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
