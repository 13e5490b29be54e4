"""Prediction of Cp on a user's mesh with a trained operator, written to a file that ParaView opens.

A mesh raises an error if the operator was not trained for its size or its height over the ground; conditions
outside those of training give a note. Edges are processed in chunks, and so are points before and after the
encoder, so that memory grows only with the mesh, its graph and the inputs of the encoder.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output
from pinchpoint.core.units import show_choices
from pinchpoint.kit.edges.edge_mlp import is_one_kernel
from pinchpoint.systems.common.budgets import budget_of, refuse_both
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.common.training.precision import autocast, matmuls, usable_precision
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.data.surface import Mesh, facets
from pinchpoint.systems.operator.files.meshes import (
    WRITES,
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
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.training.budget import chunk_for
from pinchpoint.systems.operator.training.runs import Which, load_trained

_SMALLEST = 0.3  # fraction of the longest side of the box; a shorter body is not a car in metres
# Relative to the panel size in training: panel sizes vary this much with the same number of faces.
_COARSE = 1.25
_UNITS = {0.001: "millimetres", 0.01: "centimetres", 0.0254: "inches", 0.3048: "feet"}


@dataclass(frozen=True)
class Prediction:
    """A summary of the prediction and the file it was written to."""

    path: Path
    faces: int
    edges: int
    cp_low: float
    cp_high: float
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
    yaw: float = 0.0,
    clearance: float | None = None,
    scale: float = 1.0,
    device: str = "auto",
    budget: str | int | None = None,
    chunk: int | None = None,
    which: Which = "last",
    progress: Callable[[str], None] | None = None,
) -> Prediction:
    """Predict Cp on every face of `mesh`, and write it with the normals to `output` (.vtp, .vtu or .vtk).

    yaw: degrees; clearance: metres below the lowest point, by default the height of the mesh over z = 0;
    scale: metres per unit of the mesh.
    """
    start, tell = time.perf_counter(), progress or (lambda text: None)
    _check(Path(mesh), Path(output), scale, yaw, clearance)
    if budget is not None:
        budget_of(budget)  # check it before the work starts
        refuse_both(budget, chunk)
    device = resolve_device(device, backend("torch"))
    trained_run = load_trained(Path(run), which=which, device=device)
    if trained_run.settings.kind != "flow":
        raise BadInput(
            f"The run was trained on {trained_run.settings.kind} data, which a mesh file does not contain.",
            hint="Name a run trained on flow data.",
        )
    settings = replace(
        trained_run.settings,
        memory="flat",
        precision=usable_precision(trained_run.settings.precision, device),
    )
    settings = settings if chunk is None else apply_choices(settings, {"chunk": chunk})
    tell("reading the mesh")
    surface = read_mesh(mesh)
    surface = Mesh(surface.vertices * scale, surface.faces)
    sample = mesh_sample(surface, Conditions(yaw_deg=yaw, clearance=clearance), name=Path(mesh).name)
    _check_inside(sample, trained_run.config, scale)
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
        cp = infer(trained_run.model, sample, graph, settings, progress=report)[:, 0]
    whole, _ = outward(check_mesh(surface))
    replaced = Path(output).exists()
    path = write_fields(output, whole, {"Cp": cp, "Normals": facets(whole).normals.float()})
    return Prediction(
        path,
        len(cp),
        graph.edges,
        float(cp.min()),
        float(cp.max()),
        settings.chunk,
        time.perf_counter() - start,
        _describe_device(trained_run.model, settings, device),
        replaced,
        (
            *_beyond_training(sample, trained_run.settings),
            *_coarseness_note(sample, trained_run.config),
            *_orientation_note(sample),
        ),
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


def _check(mesh: Path, output: Path, scale: float, yaw: float, clearance: float | None) -> None:
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
    return "Give it in metres with --scale, x along the car and z up, and set its height with --clearance."


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
