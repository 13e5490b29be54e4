"""A user's file as an input of a run on their own data, and its prediction as fields of that file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.data.own.cases import case_sample
from pinchpoint.systems.operator.data.own.layout import GENERATOR, MEASURES, Layout, plane_axes
from pinchpoint.systems.operator.data.own.sources import Source, parameter_files, read_source
from pinchpoint.systems.operator.data.sample import Sample, check_sample
from pinchpoint.systems.operator.files.formats import MESHES, TABLES, write_grid
from pinchpoint.systems.operator.files.grid import Cells, Grid
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.training.runs import TrainedRun

_UNLIKE = 0.1  # of the range of training: beyond it, a number of a body's shape is noted
_FIT = 0.95  # fraction of the box that --fit fills


@dataclass(frozen=True)
class OwnBody:
    """A file as a sample. grid: at its original place; back: the point of each of its points or cells."""

    sample: Sample
    grid: Grid
    layout: Layout
    back: np.ndarray
    notes: tuple[str, ...]

    @property
    def places(self) -> str:
        return self.layout.location

    def ranges(self, values: Tensor) -> dict[str, tuple[float, float]]:
        ranges = {}
        for name, columns in self.layout.fields.items():
            part = values[:, list(columns)]
            size = part[:, 0] if len(columns) == 1 else part.norm(dim=1)
            ranges[name] = float(size.min()), float(size.max())
        return ranges

    def write(self, path: Path, values: Tensor) -> Path:
        fields = {}
        for name, columns in self.layout.fields.items():
            part = values[:, list(columns)].numpy()
            if (
                part.shape[1] == 2 == self.layout.dimension
            ):  # a vector in a plane: VTK expects three components
                part = np.zeros((len(part), 3), part.dtype)
                part[:, list(self.layout.axes)] = values[:, list(columns)].numpy()
            part = np.concatenate([part, np.full_like(part[:1], np.nan)])[self.back]
            fields[name] = part[:, 0] if part.shape[1] == 1 else part
        grid = self.grid
        if not grid.cells:
            grid = replace(grid, cells=(Cells("vertex", np.arange(len(grid.points))[:, None]),))
        on_points = self.layout.location == "points"
        return write_grid(path, grid.with_fields(fields if on_points else {}, {} if on_points else fields))


def own_body(
    path: Path, trained_run: TrainedRun, *, scale: float, fit: bool, parameters: Mapping[str, float]
) -> OwnBody:
    """A file as an input of a run on a user's own data."""
    layout = Layout.from_dict(trained_run.settings.layout)
    grid, known = _read(path)
    known |= dict(parameters)
    _check_parameters(known, parameters, layout)
    axes = plane_axes(grid, path.name)
    if axes != layout.axes:
        raise BadInput(
            f"{path.name} is {len(axes)}-D in the axes {axes}, but the run was trained in the axes "
            f"{layout.axes}.",
            hint="Give a file like those of training.",
        )
    moved, notes = _placed(replace(grid, points=grid.points * scale), layout, trained_run.config, fit=fit)
    sample, places = case_sample(path.name, moved, layout, known, where=path.name, targets=False)
    if places.measure != layout.measure:
        raise BadInput(
            f"{path.name} is {MEASURES[places.measure]}, but a case of training is "
            f"{MEASURES[layout.measure]}.",
            hint="Give a file like those of training.",
        )
    check_sample(sample)
    _check_inside(sample, trained_run.config, path)
    return OwnBody(
        sample,
        grid,
        layout,
        places.back,
        (
            *_earlier_shapes(layout),
            *notes,
            *_beyond_training(sample, trained_run.settings, layout),
            *_unlike_training(sample, trained_run, layout),
        ),
    )


def _earlier_shapes(layout: Layout) -> tuple[str, ...]:
    """A note where shapes of bodies are features and were computed in another way in training."""
    if layout.has_shapes_of(GENERATOR):
        return ()
    return (
        "the run was trained with an earlier version, which computed place, size and shape of bodies in "
        "another way: make the dataset again in another folder and train the run again",
    )


def _read(path: Path) -> tuple[Grid, dict[str, float]]:
    """The grid of a file with the tables and parameters beside it."""
    tables = [
        table
        for end in TABLES
        if path.suffix.lower() in MESHES and (table := path.with_suffix(end)).is_file()
    ]
    own = [file for file in (path.with_suffix(".json"),) if file.is_file()]
    grid, known, _ = read_source(
        Source(path.stem, path, tuple(tables), (*parameter_files(path.parent), *own)), strict=False
    )
    return grid, known


def _check_parameters(known: dict[str, float], named: Mapping[str, float], layout: Layout) -> None:
    unknown = [name for name in named if name not in layout.parameters]
    if unknown:
        raise BadInput(
            f"The run has no parameter {unknown[0]!r}; it has {', '.join(layout.parameters) or 'none'}.",
            hint="Leave it out, or name another.",
        )
    for name in layout.parameters:
        if name not in known or not np.isfinite(known[name]):
            state = "missing" if name not in known else f"{known[name]}"
            raise BadInput(f"The parameter {name!r} is {state}.", hint=f"Give it: --parameter {name}=VALUE.")


def _placed(grid: Grid, layout: Layout, config: OperatorConfig, *, fit: bool) -> tuple[Grid, tuple[str, ...]]:
    """The grid, scaled and moved into the box of training if that is asked for and needed, and a note."""
    axes = list(layout.axes)
    low, high = grid.points[:, axes].min(axis=0), grid.points[:, axes].max(axis=0)
    box = np.array([config.low, config.high])[:, : len(axes)]
    if not fit or ((low >= box[0]).all() and (high <= box[1]).all()):
        return grid, ()
    sides = box[1] - box[0]
    factor = min(1.0, float((_FIT * sides / (high - low)).min()))
    points = grid.points * factor
    # Only as far as necessary: places mean something in data with a fixed domain.
    below, above = box[0] - low * factor, box[1] - high * factor
    move = np.clip(0.0, below, np.maximum(above, below))
    points[:, axes] += move
    shown = ", ".join(f"{value:.4g}" for value in move)
    return replace(grid, points=points), (
        f"the mesh was scaled by {factor:.4g} and moved by ({shown}) into the box of training",
    )


def _check_inside(sample: Sample, config: OperatorConfig, path: Path) -> None:
    low, high = sample.points.amin(0), sample.points.amax(0)
    if bool((low >= low.new_tensor(config.low)).all() and (high <= high.new_tensor(config.high)).all()):
        return
    raise BadInput(
        f"{path.name} (from {_show(low.tolist())} to {_show(high.tolist())}) is not inside the box of "
        f"training (from {_show(config.low)} to {_show(config.high)}).",
        hint="Give it in the units of training with --scale, or add --fit to scale and move it into the box.",
    )


def _beyond_training(sample: Sample, settings: Settings, layout: Layout) -> tuple[str, ...]:
    """Notes about parameters and inputs outside the range of training, where the prediction is a guess."""
    notes = []
    for column, name in enumerate(layout.features):
        if name not in (*layout.parameters, *layout.columns(layout.inputs)):
            continue
        low, high = settings.ranges[name]
        least, most = float(sample.features[:, column].min()), float(sample.features[:, column].max())
        room = 0.02 * (high - low) + 1e-6 * max(abs(low), abs(high))
        if least < low - room or most > high + room:
            here = f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}"
            notes.append(f"{name} is {here}, but training covered {low:.4g} to {high:.4g}: this is a guess")
    return tuple(notes)


def _unlike_training(sample: Sample, trained_run: TrainedRun, layout: Layout) -> tuple[str, ...]:
    """A note about bodies whose place, size or shape is outside the range of training."""
    unlike = []
    for at, name in enumerate(layout.shape):
        low, high = trained_run.settings.ranges[name]
        value = float(sample.features[0, layout.features.index(name)])
        unit = trained_run.config.half_length if at < 2 * layout.dimension else 1.0  # lengths come first
        room = _UNLIKE * (high - low) + 1e-4 * unit
        if not low - room <= value <= high + room:
            unlike.append(f"{name} is {value:.4g} (training {low:.4g} to {high:.4g})")
    return (
        (f"the bodies are unlike those of training, so this is a guess: {'; '.join(unlike)}",)
        if unlike
        else ()
    )


def _show(values: list[float] | tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"
