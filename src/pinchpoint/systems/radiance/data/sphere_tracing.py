"""Pictures of cars by sphere tracing: colour, cover and depth of every pixel, on CPU or GPU.

Many cars are rendered at a time, with the same camera as the field. Rays that miss the box of a car are not
traced, and finished rays are dropped every few steps. Letters: C cars, R rays, W pixels per side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.data.cars import Car, Pose, Shapes, colours, distance, half_box, shapes_of
from pinchpoint.systems.radiance.rendering.rays import Camera, frames

_STEPS = 80
_ROUND = 4  # steps between two checks for finished rays
_NEAR = 1e-3  # closer than this counts as on the surface
_LIGHT = (0.36, 0.48, 0.8)  # unit vector


@dataclass(frozen=True)
class Pictures:
    """Rendered pictures; white where there is no car."""

    rgb: Tensor  # (C, W, W, 3) in [0, 1]
    cover: Tensor  # (C, W, W) covered fraction of a pixel
    depth: Tensor  # (C, W, W) mean camera distance of what is covered; infinite if nothing is


@dataclass(frozen=True)
class Hits:
    """Rays that hit a car."""

    index: Tensor  # (H,) indices of the rays
    rgb: Tensor  # (H, 3)
    depth: Tensor  # (H,)


def picture(
    cars: list[Car],
    poses: list[Pose],
    *,
    size: int,
    supersample: int = 3,
    camera: Camera | None = None,
    device: str | torch.device = "cpu",
    chunk: int | None = None,
) -> Pictures:
    """Render each car from its pose, at `size` pixels per side.

    supersample: rays along the side of a pixel, which are averaged; chunk: rays traced at a time (None:
    depends on the device).
    """
    if size < 1 or supersample < 1:
        raise BadInput(
            f"A picture needs at least 1 pixel and 1 ray per pixel side, not {size} and {supersample}.",
            hint="Give at least 1 for both.",
        )
    if not cars or len(cars) != len(poses):
        raise BadInput(
            f"{len(cars)} cars do not match {len(poses)} poses.",
            hint="Give one pose per car, and at least one car.",
        )
    device = torch.device(device)
    shapes = shapes_of(cars, device=device)
    camera = camera or Camera()
    angles = torch.tensor([(pose.u, pose.v) for pose in poses], device=device)
    frame = frames(angles[:, 0], angles[:, 1])
    side = size * supersample
    total = len(cars) * side * side
    chunk = chunk or (1 << 18 if device.type == "cpu" else 1 << 22)
    rgb = torch.ones(total, 3, device=device)
    cover = torch.zeros(total, device=device)
    depth = torch.zeros(total, device=device)
    for start in range(0, total, chunk):
        rays = torch.arange(start, min(start + chunk, total), device=device)
        hits = _cast(shapes, camera, frame, rays, side)
        rgb[start + hits.index] = hits.rgb
        cover[start + hits.index] = 1.0
        depth[start + hits.index] = hits.depth
    pixels = (len(cars), size, supersample, size, supersample)
    coverage = cover.view(pixels).mean(dim=(2, 4))
    reach = depth.view(pixels).mean(dim=(2, 4)) / coverage  # 0 / 0 if nothing is covered
    return Pictures(
        rgb.view(*pixels, 3).mean(dim=(2, 4)),
        coverage,
        torch.where(coverage > 0, reach, torch.full_like(reach, math.inf)),
    )


def _cast(shapes: Shapes, camera: Camera, frame: Tensor, rays: Tensor, side: int) -> Hits:
    """Trace rays, which are numbered over all cars, row by row from the top.

    side: rays per row and column; frame: (C, 3, 3).
    """
    car, pixel = rays // (side * side), rays % (side * side)
    right, up, back = frame[car].unbind(dim=1)
    position = camera.radius * back
    scale = math.tan(math.radians(camera.fov_degrees / 2))
    across = scale * ((pixel % side + 0.5) * (2 / side) - 1)
    above = scale * (1 - (pixel // side + 0.5) * (2 / side))
    direction = torch.nn.functional.normalize(-back + across[:, None] * right + above[:, None] * up, dim=1)
    near, far = _through_box([values[car] for values in half_box(shapes)], position, direction)
    index = torch.nonzero(near < far).squeeze(1)
    hit_rays, depth = _march(shapes, car[index], position[index], direction[index], near[index], far[index])
    index = index[hit_rays]
    own, position, direction = shapes.take(car[index]), position[index], direction[index]
    at = position + depth[:, None] * direction
    return Hits(index, _shade(own, at, direction), depth)


def _through_box(half: list[Tensor], position: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Distances (R,) at which rays enter and leave boxes around the origin; enter >= leave if they miss."""
    sizes = torch.stack(half, dim=1) + 2 * _NEAR
    # A ray parallel to a face divides by this instead of zero: its bounds are then far away on the correct
    # sides.
    safe = torch.where(direction.abs() < 1e-9, torch.full_like(direction, 1e-9), direction)
    one, two = (-sizes - position) / safe, (sizes - position) / safe
    return torch.minimum(one, two).amax(dim=1), torch.maximum(one, two).amin(dim=1)


def _march(
    shapes: Shapes, car: Tensor, position: Tensor, direction: Tensor, near: Tensor, far: Tensor
) -> tuple[Tensor, Tensor]:
    """Indices of rays that hit their car, (H,), and their distances, (H,)."""
    alive = torch.arange(len(car), device=car.device)
    own = shapes.take(car)
    px, py, pz = position.unbind(dim=1)
    dx, dy, dz = direction.unbind(dim=1)
    reach, limit, gap = near, far, torch.full_like(near, math.inf)
    hit_rays, depths = [], []
    for rounds_left in reversed(range(_STEPS // _ROUND)):
        if not len(alive):
            break
        for _ in range(_ROUND):
            gap = torch.minimum(*distance(own, px + reach * dx, py + reach * dy, pz + reach * dz))
            # A ray on the surface stays there, because its next step is just as small.
            reach = torch.where(gap < _NEAR, reach, reach + gap)
        # A ray that still creeps along a surface at the end counts as a hit; otherwise it would leave a hole.
        hit = (gap < (_NEAR if rounds_left else 10 * _NEAR)) & (reach <= limit)
        hit_rays.append(alive[hit])
        depths.append(reach[hit])
        active = torch.nonzero((gap >= _NEAR) & (reach <= limit)).squeeze(1)
        own, alive = own.take(active), alive[active]
        px, py, pz, dx, dy, dz, reach, limit = (
            values[active] for values in (px, py, pz, dx, dy, dz, reach, limit)
        )
    empty = torch.empty(0, dtype=torch.long, device=car.device), torch.empty(0, device=car.device)
    return torch.cat([empty[0], *hit_rays]), torch.cat([empty[1], *depths])


def _shade(shapes: Shapes, at: Tensor, direction: Tensor) -> Tensor:
    """Colours (R, 3) of surface points (R, 3) seen along directions (R, 3), with soft light from above and a
    reflected sky.
    """
    body, wheel = distance(shapes, *at.unbind(dim=1))
    normal = _normal(shapes, at)
    albedo, mirror = colours(shapes, at, normal, wheel < body)
    light = at.new_tensor(_LIGHT)
    toward = 0.5 + 0.5 * (normal @ light)
    bright = 0.32 + 0.5 * toward.square() + 0.22 * normal[:, 2].clamp_min(0)
    back = direction - 2 * (direction * normal).sum(dim=1, keepdim=True) * normal
    sky = 0.35 * back[:, 2].clamp_min(0) + 0.8 * (back @ light).clamp_min(0).pow(24)
    return (albedo * bright[:, None] + (mirror * sky)[:, None]).clamp(0, 1)


def _normal(shapes: Shapes, at: Tensor) -> Tensor:
    """Normals from four distances at the corners of a tetrahedron around each point."""
    total = torch.zeros_like(at)
    for corner in ((1.0, -1.0, -1.0), (-1.0, -1.0, 1.0), (-1.0, 1.0, -1.0), (1.0, 1.0, 1.0)):
        toward = at.new_tensor(corner)
        total = (
            total + toward * torch.minimum(*distance(shapes, *(at + 2e-3 * toward).unbind(dim=1)))[:, None]
        )
    return torch.nn.functional.normalize(total, dim=1)
