"""Cp on a user's mesh by a trained operator, written where ParaView opens it.

A mesh is refused where the operator was never trained: another size, another height over the ground.
Conditions beyond those of training are answered and noted. Edges pass in chunks, and points before and after
the encoder too, so that beside the mesh, its graph and what the encoder reads of it the peak does not grow.
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
from pinchpoint.kit.edges.edge_mlp import is_one_kernel
from pinchpoint.systems.common.budgets import budget_of
from pinchpoint.systems.common.precision import autocast, matmuls, usable
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.operator.budget import chunk_for
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
from pinchpoint.systems.operator.inference import POINTS, answer
from pinchpoint.systems.operator.model.config import PANELS, OperatorConfig
from pinchpoint.systems.operator.model.graph import graph_of
from pinchpoint.systems.operator.model.model import Operator
from pinchpoint.systems.operator.runs import Which, trained
from pinchpoint.systems.operator.settings import Settings

_SMALLEST = 0.3  # of the box's longest side: a body shorter than that is no car in metres
_COARSE = 1.25  # times the panels of training: what meshes of one count of faces differ by
_UNITS = {0.001: "millimetres", 0.01: "centimetres", 0.0254: "inches", 0.3048: "feet"}


@dataclass(frozen=True)
class Prediction:
    """What was written and what it says."""

    path: Path
    faces: int
    edges: int
    cp_low: float
    cp_high: float
    chunk: int | None
    seconds: float
    device: str  # the card by its name, and how the edge MLPs run there
    replaced: bool  # a file of that name was there
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
    """Cp on every face of `mesh`, written with the normals to `output` (.vtp, .vtu or .vtk).

    yaw: degrees; clearance: metres below the lowest point, as the mesh stands over z = 0 without it;
    scale: metres for one unit of the mesh.
    """
    start, tell = time.perf_counter(), progress or (lambda text: None)
    _check(Path(mesh), Path(output), scale, yaw, clearance)
    if budget is not None:
        budget_of(budget)  # before the work it is for
    device = resolve_device(device, backend("torch"))
    found = trained(Path(run), which=which, device=device)
    if found.settings.kind != "flow":
        raise BadInput(
            f"the run was trained on {found.settings.kind} data, and a mesh carries nothing of it",
            hint="name a run trained on flow data",
        )
    told = replace(found.settings, memory="flat", precision=usable(found.settings.precision, device))
    told = told if chunk is None else apply_choices(told, {"chunk": chunk})
    tell("reading the mesh")
    given = read_mesh(mesh)
    given = Mesh(given.vertices * scale, given.faces)
    sample = mesh_sample(given, Conditions(yaw_deg=yaw, clearance=clearance), name=Path(mesh).name)
    _check_inside(sample, found.config, scale)
    tell("describing surroundings")
    graph = graph_of(sample.points, found.config, areas=sample.areas, features=sample.features)
    if budget is not None:
        tell("choosing the chunk")
        told = replace(
            told, chunk=chunk_for(found.config, told, graph, budget=budget, device=device, mode="infer").chunk
        )
    tell("predicting")
    with matmuls(told.precision):
        shown = (
            None
            if len(sample.points) <= POINTS
            else lambda done, total: tell(f"predicting {done:,} of {total:,} points")
        )
        cp = answer(found.model, sample, graph, told, progress=shown)[:, 0]
    whole, _ = outward(check_mesh(given))
    replaced = Path(output).exists()
    path = write_fields(output, whole, {"Cp": cp, "Normals": facets(whole).normals.float()})
    return Prediction(
        path,
        len(cp),
        graph.edges,
        float(cp.min()),
        float(cp.max()),
        told.chunk,
        time.perf_counter() - start,
        _where(found.model, told, device),
        replaced,
        (*_beyond(sample, found.settings), *_coarse(sample, found.config), *_lying(sample)),
    )


def _where(model: Operator, told: Settings, device: str) -> str:
    """The device by name, the precision, and whether edge MLPs run there as one kernel."""
    with autocast(told.precision, device):
        one = all(
            is_one_kernel(kernel, like=model.scaling.tokens)
            for kernel in (*model.encoder.kernels, *model.decoder.kernels)
        )
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return f"{name}, {told.precision}, edge MLPs {'as one kernel' if one else 'layer by layer'}"


def _check(mesh: Path, output: Path, scale: float, yaw: float, clearance: float | None) -> None:
    for name, value in (("yaw", yaw), ("clearance", clearance)):
        if value is not None and not math.isfinite(value):
            raise BadInput(f"--{name} {value:g}", hint=f"give --{name} a finite number")
    if output.exists() and mesh.exists() and output.samefile(mesh):
        raise BadInput(
            f"{output} is the mesh itself, and would be written over", hint="name another file with -o"
        )
    if output.suffix.lower() not in WRITES:
        raise BadInput(
            f"cannot write fields to {output.name!r}", hint=f"name a file that ends in {', '.join(WRITES)}"
        )
    check_output(output)
    if not 0 < scale < math.inf:
        raise BadInput(
            f"--scale {scale:g}", hint="give metres for one unit of the mesh, such as 0.001 for millimetres"
        )


def _check_inside(sample: Sample, config: OperatorConfig, scale: float) -> None:
    """Refuse a body that does not lie in the box of the training bodies, or is far too small for it."""
    low, high = sample.points.amin(0), sample.points.amax(0)
    box = [b - a for a, b in zip(config.low, config.high, strict=True)]
    extent = (high - low).tolist()
    inside = bool((low >= low.new_tensor(config.low)).all() and (high <= high.new_tensor(config.high)).all())
    if inside and max(extent) >= _SMALLEST * max(box):
        return
    how = "is far smaller than" if inside else "does not lie in"
    raise BadInput(
        f"the mesh, {_show(extent)} m and {float(low[2]):.3g} to {float(high[2]):.3g} m over the ground, {how} the training"
        f" box, {_show(box)} m and {config.low[2]:.3g} to {config.high[2]:.3g} m over the ground",
        hint=_hint(extent, box, scale),
    )


def _hint(extent: list[float], box: list[float], scale: float) -> str:
    if any(a > b for a, b in zip(extent, box, strict=True)):
        for axes, how in (
            ((0, 2, 1), "is y up in it? turn it"),
            ((1, 0, 2), "does it stand across x? turn it"),
        ):
            if all(extent[axis] <= side for axis, side in zip(axes, box, strict=True)):
                return f"x is along the car and z up: {how}"
    for factor, name in _UNITS.items():
        scaled = [factor * value for value in extent]
        if all(value <= side for value, side in zip(scaled, box, strict=True)) and max(scaled) >= 0.5 * max(
            box
        ):
            return f"is the mesh in {name}? then add --scale {factor * scale:g}"
    return "give it in metres with --scale, x along the car and z up, and set its height with --clearance"


def _beyond(sample: Sample, told: Settings) -> tuple[str, ...]:
    """What is asked for beyond what training has seen: answered, but a guess."""
    notes = []
    names = list(told.ranges)
    for name, shown, turn in (
        ("onset_y", "yaw is {:.3g} degrees", _degrees),
        ("clearance", "clearance is {:.3g} m", float),
    ):
        low, high = (turn(end) for end in told.ranges[name])
        value = turn(float(sample.features[0, names.index(name)]))
        room = 0.02 * (high - low) + 1e-3
        if not low - room <= value <= high + room:
            notes.append(
                f"the {shown.format(value)}; training saw {low:.3g} to {high:.3g}, so this is a guess"
            )
    return tuple(notes)


def _coarse(sample: Sample, config: OperatorConfig) -> list[str]:
    """A ball of too few panels looks unlike the one the operator learned from."""
    side = float(sample.areas.mean().sqrt())
    if not config.local_radii or PANELS * side <= _COARSE * min(config.local_radii):
        return []
    finer = math.ceil(len(sample.areas) * (PANELS * side / min(config.local_radii)) ** 2 / 100) * 100
    return [
        f"the mesh is coarser than those of training ({len(sample.areas):,} faces); about {finer:,} are wanted for their errors"
    ]


def _lying(sample: Sample) -> list[str]:
    length, width, height = (sample.points.amax(0) - sample.points.amin(0)).tolist()
    if length >= width >= height:
        return []
    return [
        f"the mesh is {length:.3g} m long, {width:.3g} wide and {height:.3g} high: x must be along the car and z up"
    ]


def _degrees(sine: float) -> float:
    return math.degrees(math.asin(sine))


def _show(values: list[float]) -> str:
    return " x ".join(f"{value:.3g}" for value in values)
