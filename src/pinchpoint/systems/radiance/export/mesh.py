"""Closed, coloured meshes of generated objects.

The surface lies where a layer of the field is as opaque as `level`. The layer is as thick as the distance
between two points of a ray in training, below which the field was not asked for detail. Cavities that cannot
be seen from outside are filled, and specks are left out. Colours are those that the field shows where a ray
meets the surface at a right angle; the super-resolution, which works on images, does not change them.
Letters: n grid points per side, N points, V vertices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_seconds
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.radiance.export.mesh_files import check_mesh_file, write_mesh
from pinchpoint.systems.radiance.export.surface import (
    Mesh,
    extract_surface,
    fill_cavities,
    is_watertight,
    keep_faces,
    split_parts,
)
from pinchpoint.systems.radiance.model.objective import Generator
from pinchpoint.systems.radiance.orbit import codes_of
from pinchpoint.systems.radiance.rendering.compositing import composite
from pinchpoint.systems.radiance.rendering.render import Codes
from pinchpoint.systems.radiance.training.runs import Which
from pinchpoint.systems.radiance.training.weights import load_weights

FINEST = 512  # grid points per side
_COARSE = 4  # every fourth point is looked at first, and then the neighbourhood of those that are not empty
_FAINT = 0.02  # opacity from which a coarse point is not empty
_SPECK = 0.01  # parts with less than this share of the largest part's area are left out
_POINTS = 1 << 15  # points computed at once
_ALONG = 12  # points along the short ray that gives a vertex its colour

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class MeshExport(Record):
    """A mesh of a generated object that `radiance mesh` wrote."""

    kind: ClassVar[str] = "radiance-mesh"
    target: str
    step: int
    seed: int
    thing: int  # number of the object among those of the seed
    resolution: int  # grid points per side
    level: float  # opacity of a layer
    layer: float  # its thickness
    vertices: int
    faces: int
    parts: int  # connected parts
    specks: int  # small parts that were left out
    watertight: bool
    area: float
    volume: float
    file: str
    seconds: float
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        parts = f"{self.parts} part{'s' * (self.parts != 1)}"
        return [
            ("run", f"{self.target}, step {self.step:,}"),
            ("object", f"number {self.thing} of seed {self.seed}"),
            ("mesh", f"{self.vertices:,} vertices, {self.faces:,} faces, {parts}"),
            ("left out", f"{self.specks:,} specks"),
            ("closed", "yes, every edge has two faces" if self.watertight else "no"),
            ("volume", f"{self.volume:.3f} of the {4 / 3 * np.pi:.3f} of the unit sphere"),
            ("written", self.file),
            ("time", show_seconds(self.seconds)),
        ]


def export_mesh(
    run: str | Path,
    output: str | Path,
    *,
    seed: int = 0,
    thing: int = 0,
    resolution: int = 96,
    level: float = 0.5,
    only: str | None = None,
    which: Which = "last",
    device: str = "auto",
    progress: Progress | None = None,
) -> MeshExport:
    """Write the mesh of one object as .glb, .ply or .obj.

    seed, thing: object `thing` (0, 1, ...) of those that an orbit of this seed shows; only: its class, in a
    run with classes.
    """
    start = time.perf_counter()
    check_mesh_file(output)
    path = check_output(output)
    if thing < 0:
        raise BadInput(f"--object is {thing}, but objects are numbered from 0.", hint="Give --object 0.")
    check_grid(resolution, level)
    device = resolve_device(device, backend("torch"))
    trained = load_weights(run, which=which, device=device)
    every = codes_of(trained.config, thing + 1, seed=seed, device=device, only=only)
    with matmuls("fp32"):
        mesh, colours, specks = object_mesh(
            trained.model,
            Codes(every.shape[thing:], every.app[thing:]),
            resolution=resolution,
            level=level,
            progress=progress,
        )
    write_mesh(path, mesh, colours)
    return MeshExport(
        target=str(run),
        step=trained.step,
        seed=seed,
        thing=thing,
        resolution=resolution,
        level=level,
        layer=layer_of(trained.model),
        vertices=len(mesh.vertices),
        faces=len(mesh.faces),
        parts=int(split_parts(mesh).max()) + 1,
        specks=specks,
        watertight=is_watertight(mesh),
        area=mesh.area,
        volume=mesh.volume,
        file=str(path),
        seconds=time.perf_counter() - start,
    )


def check_grid(resolution: int, level: float) -> None:
    """Raise an error for a grid or a level without a surface."""
    if not 8 <= resolution <= FINEST:
        raise BadInput(
            f"--resolution is {resolution}, but it must be between 8 and {FINEST}.",
            hint="Give --resolution a value such as 96.",
        )
    if not 0 < level < 1:
        raise BadInput(
            f"--level is {level:g}, but it must be between 0 and 1.", hint="Give --level a value such as 0.5."
        )


def object_mesh(
    generator: Generator,
    code: Codes,
    *,
    resolution: int = 96,
    level: float = 0.5,
    progress: Progress | None = None,
) -> tuple[Mesh, np.ndarray, int]:
    """The mesh of one object, the colours (V, 3) uint8 of its vertices, and how many specks were left out.

    code: of one object, (1, Z) each.
    """
    mesh, specks = object_surface(generator, code, resolution=resolution, level=level, progress=progress)
    return mesh, vertex_colours(generator, code, mesh, progress=progress), specks


def object_surface(
    generator: Generator,
    code: Codes,
    *,
    resolution: int = 96,
    level: float = 0.5,
    progress: Progress | None = None,
) -> tuple[Mesh, int]:
    """The mesh of one object without colours, which take most of the time, and how many specks were left out.

    code: of one object, (1, Z) each.
    """
    reach = reach_of(generator)
    values = fill_cavities(opacities(generator, code, resolution, progress=progress), level)
    if not (values > level).any():
        raise BadInput(
            f"The object is nowhere as opaque as the level {level:g}, so that it has no surface.",
            hint="Give a lower --level, or train the run longer.",
        )
    spacing = 2 * reach / (resolution - 1)
    mesh = extract_surface(values, level, spacing=spacing, origin=np.full(3, -reach))
    parts = split_parts(mesh)
    areas = np.bincount(parts, weights=np.linalg.norm(mesh.area_vectors(), axis=1))
    is_large = areas >= _SPECK * areas[0]
    return keep_faces(mesh, is_large[parts]), int((~is_large).sum())


def reach_of(generator: Generator) -> float:
    """Radius of the sphere around the object."""
    return generator.settings.bound or 1.0


def layer_of(generator: Generator) -> float:
    """Thickness of the layer whose opacity is compared with the level."""
    return 2 * reach_of(generator) / generator.settings.samples


@torch.no_grad()
def opacities(
    generator: Generator, code: Codes, resolution: int, *, progress: Progress | None = None
) -> np.ndarray:
    """Opacities of a layer at the points of a grid around the object: (n, n, n), indexed by x, y, z.

    Regions that are empty at every fourth point and around it are not looked at again.
    """
    reach, layer = reach_of(generator), layer_of(generator)
    line = torch.linspace(-reach, reach, resolution, device=code.shape.device)
    grid = torch.stack(torch.meshgrid(line, line, line, indexing="ij"), dim=3)
    within = grid.square().sum(dim=3) <= reach * reach
    values = torch.zeros(grid.shape[:3], device=grid.device)
    tell = progress or (lambda stage, done, total: None)

    def look(mask: Tensor, stage: str) -> None:
        index = torch.nonzero((mask & within).flatten()).squeeze(1)
        points, flat_values = grid.view(-1, 3)[index], values.view(-1)
        for first in range(0, len(index), _POINTS):
            _, density = _field(generator, code, points[first : first + _POINTS])
            flat_values[index[first : first + _POINTS]] = -torch.expm1(-layer * density)
            tell(stage, min(first + _POINTS, len(index)), len(index))

    coarse = torch.zeros_like(within)
    coarse[::_COARSE, ::_COARSE, ::_COARSE] = True
    look(coarse, "coarse grid")
    near = torch.nn.functional.max_pool3d((values > _FAINT).float()[None], 2 * _COARSE + 1, 1, _COARSE)[0] > 0
    look(near & ~coarse, "fine grid")
    return values.double().cpu().numpy()


@torch.no_grad()
def vertex_colours(
    generator: Generator, code: Codes, mesh: Mesh, *, progress: Progress | None = None
) -> np.ndarray:
    """Colours (V, 3) uint8 that the field shows where short rays enter the surface at a right angle."""
    layer, device = layer_of(generator), code.shape.device
    ends = -layer / 2, 2 * layer
    depths = torch.linspace(*ends, _ALONG, device=device)
    places, normals = (
        torch.as_tensor(values, dtype=torch.float32, device=device)
        for values in (mesh.vertices, mesh.normals())
    )
    colours, together = [], max(1, _POINTS // _ALONG)
    for first in range(0, len(places), together):
        inwards = -normals[first : first + together]
        points = places[first : first + together, None] + depths[:, None] * inwards[:, None]
        colour, density = _field(generator, code, points.flatten(0, 1), inwards)
        rgb, _, acc, _ = composite(
            colour.view(*points.shape),
            density.view(points.shape[:2]),
            depths.expand(points.shape[:2]),
            far=ends[1],
            white=False,
        )
        colours.append((rgb / acc.clamp_min(1e-6)[:, None]).clamp(0, 1))
        if progress is not None:
            progress("colours", min(first + together, len(places)), len(places))
    return (torch.cat(colours) * 255).round().to(torch.uint8).cpu().numpy()


def _field(
    generator: Generator, code: Codes, points: Tensor, directions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Colours (N, 3), before their activation, and densities (N,), which are not negative, at points (N, 3).

    directions: (N, 3) or one per group of adjacent points; by default straight down.
    """
    if directions is None:
        directions = points.new_tensor([[0.0, 0.0, -1.0]])
    colour, density, _ = generator.field(points, directions, code.shape, code.app)
    return colour, torch.relu(density[:, 0])
