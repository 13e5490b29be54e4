"""`cloud predict`: a copy of a point-cloud file with a class and its probability for every point.

Letters: N points, F features. A file is read in chunks, and its coordinates and features are kept on disk, so
that memory does not grow with the file. The network sees up to `chunk` points at a time: the whole cloud, or
one of the tiles of `tiles` with its surroundings. Labels near the border of a tile may differ from those of
the whole cloud in one piece, because the network sees less around them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_seconds
from pinchpoint.systems.cloud.data.scene import Scene, check_scene
from pinchpoint.systems.cloud.data.tiles import Tiles
from pinchpoint.systems.cloud.files.columns import (
    COLOURS,
    CONFIDENCE,
    ColourRange,
    centre_coordinates,
    features_of,
)
from pinchpoint.systems.cloud.files.readers import (
    ArrayCloud,
    ArrayRows,
    Cloud,
    LasRows,
    PlyRows,
    open_cloud,
)
from pinchpoint.systems.cloud.files.scratch import Scratch
from pinchpoint.systems.cloud.files.writers import Target, check_pair, las_scale, open_writer
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.model import predict_classes
from pinchpoint.systems.cloud.training.runs import TrainedRun, Which
from pinchpoint.systems.cloud.training.weights import load_weights
from pinchpoint.systems.common.training.precision import autocast, matmuls, usable_precision

READ = 1_000_000  # points read at a time
CHUNK = 500_000
MARGIN = 4  # voxels of the coarsest level around a tile that the network sees
LOW_CONFIDENCE = 0.5
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Prediction(Record):
    """Record of one labelled file."""

    kind: ClassVar[str] = "cloud-prediction"
    target: str  # the weights
    data: str  # the file that was read
    output: str
    step: int
    points: int
    rows: tuple[dict[str, Any], ...]  # per class: its name, points, share, mean confidence
    confidence: float  # mean over all points
    low_confidence: float  # share of the points with a probability below LOW_CONFIDENCE
    tiles: int
    parts: int  # how many times the network ran; more than the tiles if some are labelled in thinner parts
    chunk: int  # most points that the network saw at a time
    device: str
    read_s: float
    label_s: float
    write_s: float
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        pieces = "one piece" if self.parts == 1 else f"{self.parts:,} parts of at most {self.chunk:,}"
        parts = ("read", self.read_s), ("label", self.label_s), ("write", self.write_s)
        return [
            ("written", f"{self.output}: {self.points:,} points, labelled in {pieces}"),
            (
                "confidence",
                f"{self.confidence:.2f} on average; {self.low_confidence:.1%} of the points below"
                f" {LOW_CONFIDENCE:g}",
            ),
            ("time", ", ".join(f"{name} {show_seconds(value)}" for name, value in parts)),
        ]


def predict(
    run: str | Path,
    path: str | Path,
    output: str | Path,
    *,
    which: Which = "last",
    chunk: int = CHUNK,
    scale: float | None = None,
    budget: str | int | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Prediction:
    """Write a copy of a file with the columns `label` and `confidence`.

    chunk: the most points that the network sees at a time; scale: step of the coordinates of a LAS file made
    from another format; budget: bytes while points stream through the head of the network.
    """
    start = time.perf_counter()
    if chunk < 1:
        raise BadInput(f"The chunk is {chunk:,} points.", hint="Give --chunk of at least 1, such as 500k.")
    path, output = Path(path), Path(output)
    device = resolve_device(device, backend("torch"))
    trained = load_weights(run, which=which, device=device)
    classes = tuple(trained.settings.classes)
    if not classes:
        raise BadInput(
            f"{run} has no classes: it was trained for the target {trained.settings.target} alone.",
            hint="Give a run that was trained with labels.",
        )
    check_pair(path, output)
    cloud = open_cloud(path)
    las_scale(cloud, output, scale)
    with Scratch(output) as scratch:
        store = _read(cloud, trained, scratch, progress)
        read_end = time.perf_counter()
        labels = scratch.create("labels", np.uint16, cloud.points)
        confidence = scratch.create(CONFIDENCE, np.float32, cloud.points)
        tiles = Tiles(store.xyz, cell=coarsest_cell(trained.config), margin=MARGIN, most=chunk)
        tiles.route(scratch)
        parts = 0
        for number in range(tiles.count):
            if progress is not None:
                progress("tiles", number, tiles.count)
            for index, inner in tiles.parts(scratch, number):
                parts += 1
                part = _label(trained, store.scene(index), budget=budget, device=device)
                labels[index[inner]], confidence[index[inner]] = part[0][inner], part[1][inner]
        label_end = time.perf_counter()
        notes = _write(cloud, output, labels, confidence, classes, scale, progress)
        rows, mean, low = _summarise(labels, confidence, classes)
    return Prediction(
        target=str(run),
        data=str(path),
        output=str(output),
        step=trained.step,
        points=cloud.points,
        rows=rows,
        confidence=mean,
        low_confidence=low,
        tiles=tiles.count,
        parts=parts,
        chunk=chunk,
        device=device,
        read_s=read_end - start,
        label_s=label_end - read_end,
        write_s=time.perf_counter() - label_end,
        notes=tuple(notes),
    )


def coarsest_cell(config: CloudConfig) -> float:
    """Return the edge of the voxels of a network's coarsest level."""
    return config.cell * 2 ** (len(config.widths) - 1)


@dataclass(frozen=True)
class _Store:
    """Coordinates and features of all points, mapped from disk."""

    name: str
    xyz: np.ndarray  # (N, 3) float64, or float32 if the file has that
    features: np.ndarray  # (N, F) float32; colours in the units of the file
    names: tuple[str, ...]
    colour_top: float  # the value of a colour that becomes 1
    origin: np.ndarray  # subtracted from the coordinates, as `centre_coordinates` does

    def scene(self, index: np.ndarray) -> Scene:
        """Return the points of index (M,) as the network reads them."""
        features = self.features[index]
        for place, name in enumerate(self.names):
            if name in COLOURS:
                features[:, place] /= np.float32(self.colour_top)
        xyz = (self.xyz[index] - self.origin).astype(np.float32)
        return Scene(self.name, xyz, features, None, self.names)


def _read(cloud: Cloud, trained: TrainedRun, scratch: Scratch, progress: Progress | None) -> _Store:
    """Copy the coordinates and the run's features of all points to disk."""
    run_features = tuple(trained.settings.features)
    colours, low, far = ColourRange(), np.full(3, np.inf), 0.0
    dtype: np.dtype = np.dtype(np.float32)
    done = 0
    for rows in cloud.chunks(READ):
        xyz = rows.xyz
        if isinstance(rows, ArrayRows):  # its features are complete, with colours in 0..1
            features, names = rows.features, rows.cloud.scene.names
        else:
            assert isinstance(rows, PlyRows | LasRows)
            columns = rows.feature_columns()
            colours.add(columns)
            features, names = features_of(columns, colour_top=1.0, keep=run_features)
        features = features[:, _places(names, run_features, cloud.path)]
        check_scene(Scene(str(cloud.path), xyz, features, None, run_features))
        low, far, dtype = np.minimum(low, xyz.min(axis=0)), max(far, float(np.abs(xyz).max())), xyz.dtype
        scratch.append("xyz", xyz)
        scratch.append("features", features)
        done += rows.points
        if progress is not None:
            progress("points read", done, cloud.points)
    if not done:
        raise BadInput(f"{cloud.path} has no points.", hint="Give a cloud with at least one point.")
    corners = np.stack([low, np.full(3, far)]).astype(dtype)
    origin = np.array(centre_coordinates(corners)[1])
    features = scratch.load("features", np.float32).reshape(done, len(run_features))
    xyz = scratch.load("xyz", dtype, 3)
    return _Store(cloud.path.stem, xyz, features, run_features, colours.top, origin)


def _places(names: Sequence[str], run_features: Sequence[str], path: Path) -> list[int]:
    """Return where the features of the run are among those of the file."""
    missing = [name for name in run_features if name not in names]
    if missing:
        raise BadInput(
            f"{path} has no {', '.join(missing)}, which the run was trained with; it has"
            f" {', '.join(names) or 'coordinates only'}.",
            hint="Give a file with these columns, or train a run on files like this one.",
        )
    return [names.index(name) for name in run_features]


def _label(
    trained: TrainedRun, scene: Scene, *, budget: str | int | None, device: str
) -> tuple[np.ndarray, np.ndarray]:
    precision = usable_precision(trained.settings.precision, device)
    with matmuls(precision), autocast(precision, device):
        return predict_classes(trained.model, scene, budget=budget, device=device)


def _write(
    cloud: Cloud,
    output: Path,
    labels: np.ndarray,
    confidence: np.ndarray,
    classes: Sequence[str],
    scale: float | None,
    progress: Progress | None,
) -> list[str]:
    target = Target(
        output,
        cloud.points,
        added={"label": "i4", CONFIDENCE: "f4"},
        classes=classes,
        scale=scale,
        others="keep",
    )
    done = 0
    with open_writer(cloud, target) as writer:
        # Arrays are in memory anyway, and are written in one piece.
        for rows in cloud.chunks(cloud.points if isinstance(cloud, ArrayCloud) else READ):
            span = slice(done, done + rows.points)
            writer.write(rows, {"label": labels[span].astype(np.int32), CONFIDENCE: confidence[span]})
            done += rows.points
            if progress is not None:
                progress("points written", done, cloud.points)
        return writer.notes


def _summarise(
    labels: np.ndarray, confidence: np.ndarray, classes: Sequence[str]
) -> tuple[tuple[dict[str, Any], ...], float, float]:
    counts, sums, low = np.zeros(len(classes), np.int64), np.zeros(len(classes)), 0
    for start in range(0, len(labels), READ):
        part, values = labels[start : start + READ], confidence[start : start + READ]
        counts += np.bincount(part, minlength=len(classes))
        sums += np.bincount(part, values.astype(np.float64), minlength=len(classes))
        low += int((values < LOW_CONFIDENCE).sum())
    rows = tuple(
        {
            "class": name,
            "points": int(counts[number]),
            "share": float(counts[number] / len(labels)),
            "confidence": float(sums[number] / max(1, counts[number])),
        }
        for number, name in enumerate(classes)
    )
    return rows, float(sums.sum() / len(labels)), low / len(labels)
