"""Distance between exported meshes and the true shapes of procedural cars.

    python benchmarks/radiance/mesh.py -o benchmarks/results/radiance_mesh_cpu.json
    python benchmarks/radiance/mesh.py --run packaged --objects 6 --among 40 --resolution 64 \
        -o benchmarks/results/radiance_mesh_packaged_cpu.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Without --run, a field is fitted to pictures
of known cars from known poses, as in `pinchpoint demo`, and the mesh of the field is compared with the
surface of the very car: this is the error of field and export together. The true surface is extracted from
the signed distance on a grid that is twice as fine. With --run, cars that a GAN invents are compared with
--among cars drawn from the same distribution, and the distance to the nearest one, after a turn around the
vertical, is reported, beside the distance of other drawn cars to their nearest: no car of a GAN has a truth
of its own. With --meshes, one of the cars is stored in that folder. Distances are chamfer distances: mean
distances to the nearest of the points drawn on the other surface, averaged over both directions, in units of
the sphere around a car; a car is about 1.6 long. Two sets of points on the same surface give `floor`. `seen`
counts only points whose normals do not face down, because no picture shows cars from below.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.systems.radiance.data.cars import Car, distance, draw_car, shapes_of
from pinchpoint.systems.radiance.demo import fit
from pinchpoint.systems.radiance.export.mesh import export_mesh, object_mesh, object_surface
from pinchpoint.systems.radiance.export.mesh_files import write_mesh
from pinchpoint.systems.radiance.export.surface import Mesh, extract_surface, is_watertight
from pinchpoint.systems.radiance.metrics.chamfer import chamfer, sample_surface
from pinchpoint.systems.radiance.orbit import codes_of
from pinchpoint.systems.radiance.rendering.render import Codes
from pinchpoint.systems.radiance.training.weights import load_weights

SIGNS = np.array([[1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]])  # as it is, and turned by half a turn around z
DOWN = -0.1  # z of the normals of faces that look down


def true_mesh(car: Car, *, resolution: int) -> Mesh:
    """The surface of a car, from its signed distance on a grid."""
    line = torch.linspace(-1, 1, resolution)
    x, y, z = (part.flatten() for part in torch.meshgrid(line, line, line, indexing="ij"))
    shapes = shapes_of([car]).take(torch.zeros(len(x), dtype=torch.long))
    inside = -torch.minimum(*distance(shapes, x, y, z)).view(resolution, resolution, resolution)
    return extract_surface(inside.numpy(), 0.0, spacing=2 / (resolution - 1), origin=np.full(3, -1.0))


def drawn_points(mesh: Mesh, count: int, *, seed: int) -> dict[str, np.ndarray]:
    points, normals = sample_surface(mesh, count, seed=seed)
    return {"all": points, "seen": points[normals[:, 2] > DOWN]}


def compare(mesh: Mesh, truth: Mesh, count: int) -> dict[str, Any]:
    own, true, again = (
        drawn_points(one, count, seed=seed) for one, seed in ((mesh, 0), (truth, 1), (truth, 2))
    )
    return {
        "chamfer": {name: chamfer(own[name], true[name]) for name in own},
        "floor": {name: chamfer(again[name], true[name]) for name in own},
        "watertight": is_watertight(mesh),
        "faces": len(mesh.faces),
        "volume": {"mesh": mesh.volume, "truth": truth.volume},
    }


def fitted(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for number in args.cars:
        start = time.perf_counter()
        generator = fit(seed=0, steps=args.steps, car=number, views=args.views)
        fit_s = time.perf_counter() - start
        code = Codes(torch.zeros(1, 1), torch.zeros(1, 1))
        mesh, colours, specks = object_mesh(generator, code, resolution=args.resolution)
        truth = true_mesh(draw_car(0, number)[0], resolution=2 * args.resolution)
        row = {"car": number, "fit_s": fit_s, "specks": specks, **compare(mesh, truth, args.points)}
        row["total_s"] = time.perf_counter() - start
        rows.append(row)
        print(f"car {number}: {row['chamfer']}, floor {row['floor']}, {row['total_s']:.0f} s", flush=True)
        if args.meshes:
            write_mesh(args.meshes / f"car-{number}.ply", mesh, colours)
            write_mesh(args.meshes / f"car-{number}-truth.ply", truth, np.full((len(truth.vertices), 3), 180))
    return rows


def along_x(points: np.ndarray) -> np.ndarray:
    """The rotation around z, as a matrix to multiply from the right, that turns the longest side to x."""
    flat = points[:, :2] - points[:, :2].mean(axis=0)
    _, axes = np.linalg.eigh(flat.T @ flat)
    x, y = axes[:, 1]
    return np.array([[x, -y, 0.0], [y, x, 0.0], [0.0, 0.0, 1.0]])


def invented(args: argparse.Namespace) -> dict[str, Any]:
    """Distances of a GAN's cars, and of drawn cars that are not in the set, to the nearest car of the set."""
    trained = load_weights(args.run, which=args.checkpoint, device="cpu")
    codes = codes_of(trained.config, args.objects, seed=args.seed, device="cpu")
    count, resolution = args.points // 4, args.resolution
    known = [
        drawn_points(true_mesh(draw_car(0, number)[0], resolution=resolution), count, seed=number)
        for number in range(args.among)
    ]

    def nearest(mesh: Mesh) -> dict[str, float]:
        """The smallest distances, with the nose to +x or to -x: a GAN chooses the direction of its cars."""
        own = drawn_points(mesh, count, seed=0)
        turn = along_x(own["all"])
        return {
            name: min(chamfer(sign * points @ turn, one[name]) for one in known for sign in SIGNS)
            for name, points in own.items()
        }

    cars = []
    for at in range(args.objects):
        code = Codes(codes.shape[at : at + 1], codes.app[at : at + 1])
        mesh, specks = object_surface(trained.model, code, resolution=resolution)
        cars.append({"object": at, "specks": specks, "watertight": is_watertight(mesh), **nearest(mesh)})
        print(cars[-1], flush=True)
    others = [
        nearest(true_mesh(draw_car(1, number)[0], resolution=resolution)) for number in range(args.objects)
    ]
    results: dict[str, Any] = {"generated": cars, "drawn": others, "among": args.among}
    if args.meshes:
        export = export_mesh(args.run, args.meshes / "car.glb", seed=args.seed, which=args.checkpoint)
        results["export"] = export.to_dict()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="A run of `radiance train` on cars.")
    parser.add_argument("--checkpoint", default="best", choices=("last", "best"))
    parser.add_argument("--objects", type=int, default=16)
    parser.add_argument("--among", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cars", type=int, nargs="*", default=[7, 11], help="Numbers of the fitted cars.")
    parser.add_argument("--steps", type=int, default=800, help="Steps of a fit.")
    parser.add_argument("--views", type=int, default=48, help="Pictures of a fitted car.")
    parser.add_argument("--resolution", type=int, default=96)
    parser.add_argument("--points", type=int, default=6000, help="Points drawn on a surface.")
    parser.add_argument("--meshes", type=Path, help="Folder for the meshes.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    try:
        check_output(args.output)
        if args.meshes:
            args.meshes.mkdir(parents=True, exist_ok=True)
        results = {"invented": invented(args)} if args.run else {"fitted": fitted(args)}
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    record = {
        "what": "chamfer distance of exported meshes",
        "commands": ["python " + " ".join(sys.argv)],
        "created": now(),
        "machine": describe(),
        "options": options,
        **results,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
