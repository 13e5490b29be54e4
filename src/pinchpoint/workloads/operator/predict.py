"""Cp on a user's mesh by a trained operator, written where ParaView opens it.

A mesh is refused where the operator was never trained: another size, another height over the ground.
Conditions beyond those of training are answered and noted. Edges pass in chunks, so beside the mesh and
its graph the peak does not grow with the mesh.
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
from pinchpoint.workloads.operator.budget import chunk_for
from pinchpoint.workloads.operator.config import OperatorConfig
from pinchpoint.workloads.operator.graph import graph_of
from pinchpoint.workloads.operator.meshes import WRITES, Conditions, check_mesh, mesh_sample, outward, read_mesh, write_fields
from pinchpoint.workloads.operator.runs import Which, trained
from pinchpoint.workloads.operator.sample import Sample
from pinchpoint.workloads.operator.settings import Settings
from pinchpoint.workloads.operator.stepper import forward
from pinchpoint.workloads.operator.surface import Mesh, facets
from pinchpoint.workloads.training.precision import matmuls, usable
from pinchpoint.workloads.training.settings import chosen

_SMALLEST = 0.3  # of the box's longest side: a body shorter than that is no car in metres
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
    notes: tuple[str, ...] = ()


def predict(
    run: str | Path, mesh: str | Path, output: str | Path, *, yaw: float = 0.0, clearance: float | None = None,
    scale: float = 1.0, device: str = "auto", budget: str | int | None = None, chunk: int | None = None, which: Which = "last",
    progress: Callable[[str], None] | None = None,
) -> Prediction:  # fmt: skip
    """Cp on every face of `mesh`, written with the normals to `output` (.vtp, .vtu or .vtk).

    yaw: degrees; clearance: metres below the lowest point, as the mesh stands over z = 0 without it;
    scale: metres for one unit of the mesh.
    """
    start, tell = time.perf_counter(), progress or (lambda text: None)
    _check(Path(output), scale)
    device = resolve_device(device, backend("torch"))
    found = trained(Path(run), which=which, device=device)
    if found.settings.kind != "flow":
        raise BadInput(
            f"the run was trained on {found.settings.kind} data, and a mesh carries nothing of it",
            mend="name a run trained on flow data",
        )
    told = replace(found.settings, memory="flat", precision=usable(found.settings.precision, device))
    told = told if chunk is None else chosen(told, {"chunk": chunk})
    tell("reading the mesh")
    given = read_mesh(mesh)
    given = Mesh(given.vertices * scale, given.faces)
    sample = mesh_sample(given, Conditions(yaw_deg=yaw, clearance=clearance), name=Path(mesh).name)
    _check_inside(sample, found.config, scale)
    tell("describing surroundings")
    graph = graph_of(sample.points, found.config, areas=sample.areas)
    if budget is not None:
        tell("choosing the chunk")
        told = replace(told, chunk=chunk_for(found.config, told, graph, budget=budget, device=device, mode="infer").chunk)
    tell("predicting")
    with matmuls(told.precision), torch.no_grad():
        cp = forward(found.model, sample.to(device), graph.to(device), told).float().cpu()[:, 0]
    whole, _ = outward(check_mesh(given))
    path = write_fields(output, whole, {"Cp": cp, "Normals": facets(whole).normals.float()})
    return Prediction(
        path, len(cp), graph.edges, float(cp.min()), float(cp.max()), told.chunk, time.perf_counter() - start,
        _beyond(sample, found.settings),
    )  # fmt: skip


def _check(output: Path, scale: float) -> None:
    if output.suffix.lower() not in WRITES:
        raise BadInput(f"cannot write fields to {output.name!r}", mend=f"name a file that ends in {', '.join(WRITES)}")
    check_output(output)
    if not scale > 0:
        raise BadInput(f"--scale {scale:g}", mend="give metres for one unit of the mesh, such as 0.001 for millimetres")


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
        mend=_mend(extent, box, scale),
    )


def _mend(extent: list[float], box: list[float], scale: float) -> str:
    for factor, name in _UNITS.items():
        scaled = [factor * value for value in extent]
        if all(value <= side for value, side in zip(scaled, box, strict=True)) and max(scaled) >= 0.5 * max(box):
            return f"is the mesh in {name}? then add --scale {factor * scale:g}"
    return "give it in metres with --scale, x along the car and z up, and set its height with --clearance"


def _beyond(sample: Sample, told: Settings) -> tuple[str, ...]:
    """What is asked for beyond what training has seen: answered, but a guess."""
    notes = []
    names = list(told.ranges)
    for name, shown, turn in (("onset_y", "yaw is {:.3g} degrees", _degrees), ("clearance", "clearance is {:.3g} m", float)):
        low, high = (turn(end) for end in told.ranges[name])
        value = turn(float(sample.features[0, names.index(name)]))
        room = 0.02 * (high - low) + 1e-3
        if not low - room <= value <= high + room:
            notes.append(f"the {shown.format(value)}; training saw {low:.3g} to {high:.3g}, so this is a guess")
    return tuple(notes)


def _degrees(sine: float) -> float:
    return math.degrees(math.asin(sine))


def _show(values: list[float]) -> str:
    return " x ".join(f"{value:.3g}" for value in values)
