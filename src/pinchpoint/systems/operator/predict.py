"""Prediction of fields on a user's mesh with a trained operator, written to a file that ParaView opens.

A run on our cars predicts Cp, a run on a user's own data all of its targets, under their own names.

A mesh raises an error if the operator was not trained for its size or its height over the ground; conditions
outside those of training give a note. Edges are processed in chunks, and so are points before and after the
encoder, so that memory grows only with the mesh, its graph and the inputs of the encoder.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output
from pinchpoint.core.units import show_choices
from pinchpoint.kit.edges.edge_mlp import is_one_kernel
from pinchpoint.systems.common.budgets import budget_of, refuse_both
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.common.training.precision import autocast, matmuls, usable_precision
from pinchpoint.systems.operator.data.dataset import OWN
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.data.surface import Mesh, facets
from pinchpoint.systems.operator.files.formats import WRITES
from pinchpoint.systems.operator.files.meshes import (
    Conditions,
    check_mesh,
    mesh_sample,
    outward,
    read_mesh,
    write_fields,
)
from pinchpoint.systems.operator.model.config import PANELS, OperatorConfig
from pinchpoint.systems.operator.model.graph import graph_of
from pinchpoint.systems.operator.model.inference import POINTS, infer
from pinchpoint.systems.operator.model.model import Operator
from pinchpoint.systems.operator.predict_own import own_body
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.training.budget import chunk_for
from pinchpoint.systems.operator.training.runs import TrainedRun, Which, load_trained

_FIT = 0.95  # fraction of the box that --fit fills
_SMALLEST = 0.3  # fraction of the longest side of the box; a shorter body is not a car in metres
# Relative to the panel size in training: panel sizes vary this much with the same number of faces.
_COARSE = 1.25
_UNITS = {0.001: "millimetres", 0.01: "centimetres", 0.0254: "inches", 0.3048: "feet"}


@dataclass(frozen=True)
class Prediction:
    """A summary of the prediction and the file it was written to."""

    path: Path
    ranges: dict[str, tuple[float, float]]  # lowest and highest value of each field; of a vector, its length
    count: int  # of the places with values
    places: str  # faces, points or cells
    edges: int
    chunk: int | None
    seconds: float
    device: str  # the name of the GPU or CPU, and how the edge MLPs run there
    replaced: bool  # whether a file of that name existed
    notes: tuple[str, ...] = ()


def predict(
    run: str | Path,
    mesh: str | Path,
    output: str | Path,
    *,
    yaw: float | None = None,
    clearance: float | None = None,
    scale: float = 1.0,
    fit: bool = False,
    parameters: Mapping[str, float] | None = None,
    device: str = "auto",
    budget: str | int | None = None,
    chunk: int | None = None,
    which: Which = "last",
    progress: Callable[[str], None] | None = None,
) -> Prediction:
    """Predict the fields of a run on `mesh`, and write them to `output` (.vtp, .vtu or .vtk).

    scale: units of training per unit of the mesh (metres for cars). fit: scale and move a mesh that is not
    inside the box of training into it. For a run on cars: yaw in degrees, 0 by default; clearance in metres
    below the lowest point, by default the height of the mesh over z = 0. For a run on own data: parameters
    by name, in addition to those beside or in the file, and the file may be a table with points (.npz, .csv
    or HDF5).
    """
    start, tell = time.perf_counter(), progress or (lambda text: None)
    _check(Path(mesh), Path(output), scale, yaw, clearance)
    if budget is not None:
        budget_of(budget)  # check it before the work starts
        refuse_both(budget, chunk)
    device = resolve_device(device, backend("torch"))
    trained_run = load_trained(Path(run), which=which, device=device)
    kind = trained_run.settings.kind
    if kind not in ("flow", OWN):
        raise BadInput(
            f"The run was trained on {kind} data, which a mesh file does not contain.",
            hint="Name a run trained on flow data.",
        )
    _check_conditions(kind, yaw, clearance, parameters)
    settings = replace(
        trained_run.settings,
        memory="flat",
        precision=usable_precision(trained_run.settings.precision, device),
    )
    settings = settings if chunk is None else apply_choices(settings, {"chunk": chunk})
    tell("reading the mesh")
    if kind == OWN:
        body: _Body = own_body(Path(mesh), trained_run, scale=scale, fit=fit, parameters=parameters or {})
    else:
        body = _car(Path(mesh), trained_run, Conditions(yaw or 0.0, clearance), scale=scale, fit=fit)
    sample = body.sample
    tell("computing surroundings")
    graph = graph_of(sample.points, trained_run.config, areas=sample.areas, features=sample.features)
    if budget is not None:
        tell("choosing the chunk")
        settings = replace(
            settings,
            chunk=chunk_for(
                trained_run.config, settings, graph, budget=budget, device=device, mode="infer"
            ).chunk,
        )
    tell("predicting")
    with matmuls(settings.precision):
        report = (
            None
            if len(sample.points) <= POINTS
            else lambda done, total: tell(f"predicting {done:,} of {total:,} points")
        )
        values = infer(trained_run.model, sample, graph, settings, progress=report)
    replaced = Path(output).exists()
    path = body.write(Path(output), values)
    return Prediction(
        path,
        body.ranges(values),
        len(values),
        body.places,
        graph.edges,
        settings.chunk,
        time.perf_counter() - start,
        _describe_device(trained_run.model, settings, device),
        replaced,
        body.notes,
    )


class _Body(Protocol):
    """A mesh as an input of a run, and how its prediction (P, T) is written."""

    @property
    def sample(self) -> Sample: ...
    @property
    def places(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def ranges(self, values: Tensor) -> dict[str, tuple[float, float]]: ...
    def write(self, path: Path, values: Tensor) -> Path: ...


@dataclass(frozen=True)
class _Car:
    """A closed surface for a run on cars. surface: in metres, at its original place."""

    sample: Sample
    surface: Mesh
    notes: tuple[str, ...]
    places: str = "faces"

    def ranges(self, values: Tensor) -> dict[str, tuple[float, float]]:
        return {"Cp": (float(values[:, 0].min()), float(values[:, 0].max()))}

    def write(self, path: Path, values: Tensor) -> Path:
        whole, _ = outward(check_mesh(self.surface))
        return write_fields(path, whole, {"Cp": values[:, 0], "Normals": facets(whole).normals.float()})


def _car(path: Path, trained_run: TrainedRun, conditions: Conditions, *, scale: float, fit: bool) -> _Car:
    config = trained_run.config
    surface = read_mesh(path)
    whole = surface = Mesh(surface.vertices * scale, surface.faces)
    fit_notes: tuple[str, ...] = ()
    if fit:
        whole, conditions, fit_notes = _fit_car(whole, conditions, trained_run)
    sample = mesh_sample(whole, conditions, name=path.name)
    _check_inside(sample, config, scale)
    notes = (
        *fit_notes,
        *_beyond_training(sample, trained_run.settings),
        *_coarseness_note(sample, config),
        *_orientation_note(sample),
    )
    return _Car(sample, surface, notes)


def _fit_car(
    mesh: Mesh, conditions: Conditions, trained_run: TrainedRun
) -> tuple[Mesh, Conditions, tuple[str, ...]]:
    """The mesh scaled into the box of training if it is not inside or far smaller, and a note about it."""
    config = trained_run.config
    low, high = mesh.vertices.amin(dim=0), mesh.vertices.amax(dim=0)
    extent = (high - low).clamp_min(torch.finfo(torch.float64).tiny)
    box = extent.new_tensor([b - a for a, b in zip(config.low, config.high, strict=True)])
    clearance = float(low[2]) if conditions.clearance is None else conditions.clearance
    least, most = trained_run.settings.ranges["clearance"]
    whole = bool((extent <= _FIT * box).all()) and float(extent.max() / box.max()) >= _SMALLEST
    if whole and clearance > 0 and clearance + float(extent[2]) <= config.high[2]:
        return mesh, conditions, ()
    factor = 1.0 if whole else float((_FIT * box / extent).min())
    # The gap below a body grows with it; where that leaves the range of training, the nearest one is used.
    gap = min(max(clearance * factor, least), most) if conditions.clearance is None else clearance
    room = config.high[2] - gap
    if float(extent[2]) * factor > room:
        factor = room / float(extent[2])
    note = f"the mesh was scaled by {factor:.4g} into the box of training, with a clearance of {gap:.3g} m"
    return Mesh(mesh.vertices * factor, mesh.faces), replace(conditions, clearance=gap), (note,)


def _check_conditions(
    kind: str, yaw: float | None, clearance: float | None, parameters: Mapping[str, float] | None
) -> None:
    """Refuse options that belong to runs on another kind of data."""
    if kind == OWN and (yaw is not None or clearance is not None):
        raise BadInput(
            "--yaw and --clearance belong to runs on cars; this run was trained on your own data.",
            hint="Leave them out; give its parameters with --parameter NAME=VALUE.",
        )
    if kind != OWN and parameters:
        raise BadInput(
            "--parameter belongs to runs on your own data; this run was trained on cars.",
            hint="Leave it out; give --yaw and --clearance.",
        )


def _describe_device(model: Operator, settings: Settings, device: str) -> str:
    """The name of the device, the precision, and whether edge MLPs run as one kernel."""
    with autocast(settings.precision, device):
        one = all(
            is_one_kernel(kernel, like=model.scaling.tokens)
            for kernel in (*model.encoder.kernels, *model.decoder.kernels)
        )
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return f"{name}, {settings.precision}, edge MLPs {'as one kernel' if one else 'layer by layer'}"


def _check(mesh: Path, output: Path, scale: float, yaw: float | None, clearance: float | None) -> None:
    for name, value in (("yaw", yaw), ("clearance", clearance)):
        if value is not None and not math.isfinite(value):
            raise BadInput(
                f"--{name} is {value:g}, which is not finite.", hint=f"Give --{name} a finite number."
            )
    if output.exists() and mesh.exists() and output.samefile(mesh):
        raise BadInput(
            f"{output} is the mesh itself and would be overwritten.", hint="Name another file with -o."
        )
    if output.suffix.lower() not in WRITES:
        raise BadInput(
            f"Fields cannot be written to {output.name!r}.",
            hint=f"Name a file that ends in {show_choices(WRITES)}.",
        )
    check_output(output)
    if not 0 < scale < math.inf:
        raise BadInput(
            f"--scale is {scale:g}; it must be finite and above 0.",
            hint="Give metres per unit of the mesh, such as 0.001 for millimetres.",
        )


def _check_inside(sample: Sample, config: OperatorConfig, scale: float) -> None:
    """Raise `BadInput` if a body does not lie in the box of the training bodies, or is far smaller."""
    low, high = sample.points.amin(0), sample.points.amax(0)
    box = [b - a for a, b in zip(config.low, config.high, strict=True)]
    extent = (high - low).tolist()
    inside = bool((low >= low.new_tensor(config.low)).all() and (high <= high.new_tensor(config.high)).all())
    if inside and max(extent) >= _SMALLEST * max(box):
        return
    relation = "far smaller than" if inside else "not inside"
    raise BadInput(
        f"The mesh ({_show(extent)} m, {float(low[2]):.3g} to {float(high[2]):.3g} m over the ground) is "
        f"{relation} the training box ({_show(box)} m, {config.low[2]:.3g} to {config.high[2]:.3g} m "
        "over the ground).",
        hint=_hint(extent, box, scale),
    )


def _hint(extent: list[float], box: list[float], scale: float) -> str:
    if any(a > b for a, b in zip(extent, box, strict=True)):
        for axes, how in (
            ((0, 2, 1), "y seems to be up"),
            ((1, 0, 2), "y seems to be along the car"),
        ):
            if all(extent[axis] <= side for axis, side in zip(axes, box, strict=True)):
                return f"Rotate the mesh so that x is along the car and z is up: {how}."
    for factor, name in _UNITS.items():
        metres = [factor * value for value in extent]
        fits = all(value <= side for value, side in zip(metres, box, strict=True))
        if fits and max(metres) >= 0.5 * max(box):
            return f"Add --scale {factor * scale:g} if the mesh is in {name}."
    return (
        "Give it in metres with --scale, x along the car and z up, and set its height with --clearance; or "
        "add --fit to scale it into the box."
    )


def _beyond_training(sample: Sample, settings: Settings) -> tuple[str, ...]:
    """Notes about conditions outside the range of training, where the prediction is a guess."""
    notes = []
    names = list(settings.ranges)
    for name, text, convert in (
        ("onset_y", "yaw is {:.3g} degrees", _degrees),
        ("clearance", "clearance is {:.3g} m", float),
    ):
        low, high = (convert(end) for end in settings.ranges[name])
        value = convert(float(sample.features[0, names.index(name)]))
        room = 0.02 * (high - low) + 1e-3
        if not low - room <= value <= high + room:
            notes.append(
                f"the {text.format(value)}, but training covered {low:.3g} to {high:.3g}: this is a guess"
            )
    return tuple(notes)


def _coarseness_note(sample: Sample, config: OperatorConfig) -> list[str]:
    """A note about a mesh with larger panels than in training, whose statistics therefore differ."""
    side = float(sample.areas.mean().sqrt())
    if not config.local_radii or PANELS * side <= _COARSE * min(config.local_radii):
        return []
    finer = math.ceil(len(sample.areas) * (PANELS * side / min(config.local_radii)) ** 2 / 100) * 100
    return [
        f"the mesh ({len(sample.areas):,} faces) is coarser than in training; about {finer:,} faces are "
        "needed for errors as small as in training"
    ]


def _orientation_note(sample: Sample) -> list[str]:
    length, width, height = (sample.points.amax(0) - sample.points.amin(0)).tolist()
    if length >= width >= height:
        return []
    return [
        f"the mesh is {length:.3g} m long, {width:.3g} m wide and {height:.3g} m high: x must be along the "
        "car and z up"
    ]


def _degrees(sine: float) -> float:
    return math.degrees(math.asin(sine))


def _show(values: list[float]) -> str:
    return " x ".join(f"{value:.3g}" for value in values)
