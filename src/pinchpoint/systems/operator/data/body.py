"""A body: a mesh with a known field on it, created from (kind, seed, number, panels), and its file.

A body's shape depends only on (seed, number); `panels` is the resolution of its mesh. The file is an .npz
with the same bytes for the same body: vertices (V, 3) float32, faces (F, 3) int32, one float32 array (F,) per
field, and `about`, a JSON text with the rest. That includes the origin of the body and a sha256 of its
content, so that a file shows by itself whether it is complete and which dataset it belongs to. The field is
computed on the stored mesh, rounded to float32.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.data import sample_file
from pinchpoint.systems.operator.data import cars, flow, harmonic
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.data.surface import Mesh, facets, smooth_normals

Kind = Literal["flow", "harmonic"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Increased with every change that alters the numbers of a body; a dataset of another generator is not
# resumed.
GENERATOR = 2
FEATURES: dict[Kind, tuple[str, ...]] = {
    "flow": ("normal_x", "normal_y", "normal_z", "onset_x", "onset_y", "onset_z", "clearance"),
    "harmonic": ("normal_x", "normal_y", "normal_z", "flux"),
}
TARGETS: dict[Kind, tuple[str, ...]] = {"flow": ("cp",), "harmonic": ("potential",)}


@dataclass(frozen=True)
class Origin:
    """Everything that determines the numbers of a body."""

    generator: int
    kind: str
    seed: int
    panels: int
    number: int


@dataclass(frozen=True)
class Body:
    name: str
    origin: Origin
    kind: Kind
    mesh: Mesh
    fields: dict[str, Tensor]  # each (F,) float32; flow: cp; harmonic: potential, flux
    parameters: dict[str, Any]  # the random shape: the fields of a Car or a Ball
    quality: dict[str, float]
    faults: tuple[str, ...]  # why it is excluded from the splits; empty for a good body

    @property
    def ok(self) -> bool:
        return not self.faults


def make_body(kind: Kind, *, name: str, seed: int, number: int, panels: int, device: str = "cpu") -> Body:
    """Draw, mesh and solve one body."""
    origin = Origin(GENERATOR, kind, seed, panels, number)
    if kind == "flow":
        car = cars.draw_car(seed, number)
        mesh = _round_to_float32(cars.car_mesh(car, panels))
        solution = flow.solve_flow(mesh, yaw_deg=car.yaw_deg, device=device)
        fields = {"cp": solution.cp.cpu().float()}
        quality = dataclasses.asdict(solution.quality)
        return Body(
            name,
            origin,
            kind,
            mesh,
            fields,
            dataclasses.asdict(car),
            quality,
            tuple(flow.faults(solution.quality)),
        )
    ball = harmonic.draw_ball(seed, number)
    mesh = _round_to_float32(harmonic.ball_mesh(ball, panels))
    value, flux, net = harmonic.surface_fields(ball, mesh)
    faults = (
        () if net <= harmonic.FLUX_LIMIT else (f"net flux {net:.3g} is beyond {harmonic.FLUX_LIMIT:.3g}",)
    )
    about = {key: part.tolist() for key, part in dataclasses.asdict(ball).items()}
    fields = {"potential": value.float(), "flux": flux.float()}
    return Body(name, origin, kind, mesh, fields, about, {"net_flux": net}, faults)


def making_bytes(kind: Kind, panels: int) -> int:
    """Approximate host memory to create one body: a matrix of panels x panels for flow, and torch itself."""
    return (8 * panels**2 if kind == "flow" else 0) + 2**29


def body_sample(body: Body) -> Sample:
    """The body as an input of the operator."""
    shape = facets(body.mesh)
    if body.kind == "flow":
        normals = smooth_normals(body.mesh, shape.normals)
        features = flow_features(
            normals, yaw_deg=body.parameters["yaw_deg"], clearance=body.parameters["clearance"]
        )
    else:
        features = torch.cat([shape.normals.float(), body.fields["flux"][:, None]], dim=1)
    target = torch.stack([body.fields[name] for name in TARGETS[body.kind]], dim=1)
    return Sample(body.name, shape.centroids.float(), features, target, shape.areas.float())


def flow_features(normals: Tensor, *, yaw_deg: float, clearance: float) -> Tensor:
    """(P, 7) float32 from outward normals (P, 3): normal, onset flow direction, clearance in metres."""
    same = torch.cat([flow.onset(yaw_deg), torch.tensor([clearance], dtype=torch.float64)])
    return torch.cat([normals.double(), same.expand(len(normals), 4).to(normals.device)], dim=1).float()


def pack(body: Body) -> bytes:
    """The bytes of the body's file, the same for the same body."""
    arrays: dict[str, np.ndarray] = {f"field_{name}": values.numpy() for name, values in body.fields.items()}
    arrays["vertices"] = body.mesh.vertices.numpy().astype(np.float32)
    arrays["faces"] = body.mesh.faces.numpy().astype(np.int32)
    about = {key: getattr(body, key) for key in ("name", "kind", "parameters", "quality", "faults")}
    about["origin"] = dataclasses.asdict(body.origin)
    return sample_file.pack_arrays(arrays, about)


def unpack(data: bytes, *, where: str) -> Body:
    """The body in a file's bytes. Raises `BadInput` with the file's name if they are not a complete body."""
    try:
        arrays, about = sample_file.unpack_arrays(data)
        mesh = Mesh(torch.from_numpy(arrays["vertices"]).double(), torch.from_numpy(arrays["faces"]).long())
        fields = {
            key.removeprefix("field_"): torch.from_numpy(arrays[key])
            for key in arrays
            if key.startswith("field_")
        }
        return Body(
            about["name"],
            Origin(**about["origin"]),
            about["kind"],
            mesh,
            fields,
            about["parameters"],
            about["quality"],
            tuple(about["faults"]),
        )
    except sample_file.FAILURES as error:
        raise BadInput(
            f"{where} is not a body of a dataset: {error}.",
            hint="Name a body-*.npz created by `pinchpoint operator data`.",
        ) from error


def _round_to_float32(mesh: Mesh) -> Mesh:
    return Mesh(mesh.vertices.float().double(), mesh.faces)
