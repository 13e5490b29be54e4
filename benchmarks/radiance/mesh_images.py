"""Pictures of a public mesh in many proportions and colours, as a second set of images to train on.

    pip download --no-deps pyvista && unzip -j pyvista-*.whl 'pyvista/examples/airplane.ply'
    python benchmarks/radiance/mesh_images.py airplane.ply -o planes --images 4000 --size 128
    pinchpoint radiance train planes -o run --size 64 --superres 2 --set bound=1

pinchpoint must be importable: installed, or `PYTHONPATH=src`; meshes are read by meshio (.ply, .obj, .stl).
Every picture shows the mesh, stretched along its axes at random, in a colour of its own, on white, from a
random direction of the upper hemisphere, with the camera, light and poses of `radiance data`. Faces are drawn
as points from far to near at --supersample times the size, and averaged. --up names the axis that points up.
"""

from __future__ import annotations

import argparse
import colorsys
import math
import sys
from pathlib import Path

import numpy as np

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import make_folder
from pinchpoint.systems.radiance.data.cars import V_RANGE
from pinchpoint.systems.radiance.orbit import save_sheet
from pinchpoint.systems.radiance.rendering.rays import Camera

LIGHT = np.array([0.36, 0.48, 0.8])
STRETCH = (0.8, 1.25)  # of each axis, before the mesh is scaled into the unit sphere
POINTS_PER_PIXEL = 3  # points drawn on the surface, so that no pixel of it stays empty


def read_mesh(path: Path, up: str) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) around the origin with z up, and triangles (F, 3)."""
    import meshio

    mesh = meshio.read(path)
    faces = np.concatenate([block.data for block in mesh.cells if block.type == "triangle"])
    order = {"z": (0, 1, 2), "y": (2, 0, 1), "x": (1, 2, 0)}[up]
    vertices = np.asarray(mesh.points, dtype=np.float64)[:, order]
    return vertices - (vertices.max(axis=0) + vertices.min(axis=0)) / 2, faces


def draw(
    vertices: np.ndarray, faces: np.ndarray, rgb: np.ndarray, u: float, v: float, side: int, camera: Camera
) -> np.ndarray:
    """A picture (side, side, 3) in [0, 1] of a mesh in the unit sphere, drawn as points."""
    high = 1 - 2 * v
    flat, turn = math.sqrt(1 - high * high), 2 * math.pi * u
    right = np.array([-math.sin(turn), math.cos(turn), 0.0])
    above = np.array([-high * math.cos(turn), -high * math.sin(turn), flat])
    back = np.array([flat * math.cos(turn), flat * math.sin(turn), high])
    corners = vertices[faces]
    cross = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    areas = np.linalg.norm(cross, axis=1)
    normals = cross / np.maximum(areas, 1e-12)[:, None]
    wide = math.tan(math.radians(camera.fov_degrees) / 2) * 2 * (camera.radius - 1) / side  # of a near pixel
    counts = np.ceil(POINTS_PER_PIXEL * areas / 2 / wide**2).astype(int)
    index = np.repeat(np.arange(len(faces)), counts)
    random = np.random.default_rng(0)
    one, two = np.sqrt(random.uniform(size=len(index))), random.uniform(size=len(index))
    weights = np.stack([1 - one, one * (1 - two), one * two], axis=1)
    points = (weights[..., None] * corners[index]).sum(axis=1)
    towards = camera.radius * back - points
    depth = towards @ back
    steep = math.tan(math.radians(camera.fov_degrees) / 2)
    x = ((points @ right) / (depth * steep) + 1) * side / 2
    y = (1 - (points @ above) / (depth * steep)) * side / 2
    normal = normals[index] * np.sign((normals[index] * towards).sum(axis=1, keepdims=True))
    lit = 0.32 + 0.5 * (0.5 + 0.5 * normal @ LIGHT) ** 2 + 0.22 * normal[:, 2].clip(0)
    half = towards / np.linalg.norm(towards, axis=1, keepdims=True) + LIGHT
    shine = 0.35 * ((normal * half).sum(axis=1) / np.linalg.norm(half, axis=1)).clip(0) ** 32
    colours = (rgb * lit[:, None] + shine[:, None]).clip(0, 1)
    inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
    order = np.argsort(-depth[inside], kind="stable")  # the nearest point is drawn last
    image = np.ones((side, side, 3))
    image[y[inside][order].astype(int), x[inside][order].astype(int)] = colours[inside][order]
    return image


def picture(
    vertices: np.ndarray, faces: np.ndarray, number: int, *, seed: int, size: int, supersample: int
) -> np.ndarray:
    """Picture number `number` of a seed: (size, size, 3) uint8."""
    random = np.random.default_rng([seed, number])
    stretched = vertices * random.uniform(*STRETCH, size=3)
    stretched = stretched * (0.95 / np.linalg.norm(stretched, axis=1).max())
    hue, saturation, value = random.uniform([0, 0.5, 0.65], [1, 0.9, 0.95])
    rgb = np.array(colorsys.hsv_to_rgb(hue, saturation, value))
    u, v = random.uniform(), random.uniform(*V_RANGE)
    large = draw(stretched, faces, rgb, u, v, size * supersample, Camera())
    small = large.reshape(size, supersample, size, supersample, 3).mean(axis=(1, 3))
    return np.rint(255 * small).astype(np.uint8)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mesh", type=Path)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--first", type=int, default=0, help="Number of the first picture.")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--supersample", type=int, default=2)
    parser.add_argument("--up", choices=("x", "y", "z"), default="z")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    try:
        vertices, faces = read_mesh(args.mesh, args.up)
        folder = make_folder(args.output)
        for number in range(args.first, args.first + args.images):
            pixels = picture(
                vertices, faces, number, seed=args.seed, size=args.size, supersample=args.supersample
            )
            save_sheet(folder / f"{number:06d}.png", pixels)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
