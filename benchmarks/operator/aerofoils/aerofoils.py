"""Steady laminar flow over aerofoils by OpenFOAM: a dataset of a real solver for `pinchpoint operator`.

    python benchmarks/operator/aerofoils/aerofoils.py validate -o validation.json
    python benchmarks/operator/aerofoils/aerofoils.py solve solved --cases 200
    python benchmarks/operator/aerofoils/aerofoils.py pack solved -o benchmarks/operator/aerofoils/flows.npz
    python benchmarks/operator/aerofoils/aerofoils.py export -o runs

`solve` runs the cases that the folder lacks, one simpleFoam each (about 2 s on one core). A case whose flow
is not steady, so that simpleFoam does not converge, is listed in `left-out.json` and not tried again.
`export` writes the packed flows, which need no OpenFOAM, as VTK files that `pinchpoint operator data --from`
reads.
pinchpoint must be importable (installed, or PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from foam import Flow, require_openfoam, run_case, write_case
from packing import NearFlow, pack, read_run, unpack
from shapes import Mesh, Shape, mesh_of

from pinchpoint.core import machine
from pinchpoint.core.errors import BadInput, PinchpointError, TargetFailed
from pinchpoint.core.files import make_folder, write_bytes, write_text
from pinchpoint.core.records import now, script_command

AROUND, LAYERS, FAR = 112, 60, 30.0
ITERATIONS, TIMEOUT_S = 1500, 300.0
LEFT_OUT = "left-out.json"
PACKED = Path(__file__).with_name("flows.npz")


@dataclass(frozen=True)
class Case:
    """A body in an inflow: angle of attack `alpha` in degrees, Reynolds number of the chord `reynolds`."""

    shape: Shape
    alpha: float
    reynolds: float

    def solve(self, mesh: Mesh) -> Flow:
        with tempfile.TemporaryDirectory(prefix="aerofoil-") as folder:
            write_case(Path(folder), mesh, alpha=self.alpha, reynolds=self.reynolds, iterations=ITERATIONS)
            return run_case(Path(folder), mesh, timeout_s=TIMEOUT_S)

    def mesh(self) -> Mesh:
        return mesh_of(self.shape, around=AROUND, layers=LAYERS, far=FAR)


def draw_case(number: int, *, seed: int) -> Case:
    """Return a case, which depends only on the seed and its number."""
    random = np.random.default_rng([seed, number])
    shape = Shape(
        offset=random.uniform(0.02, 0.18),
        rise=random.uniform(0.0, 0.14),
        rounding=random.uniform(0.015, 0.08),
    )
    reynolds = math.exp(random.uniform(math.log(100), math.log(500)))
    return Case(shape, alpha=random.uniform(-5, 15), reynolds=reynolds)


def solve(args: argparse.Namespace) -> int:
    """Solve the cases that the folder lacks."""
    require_openfoam()
    folder: Path = args.solved
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LEFT_OUT
    left_out: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    names = {f"case-{number:04d}": number for number in range(args.cases)}
    missing = [name for name in names if name not in left_out and not (folder / f"{name}.npz").exists()]
    print(f"{len(names) - len(missing)} of {len(names)} cases exist", flush=True)

    def one(name: str) -> None:
        case = draw_case(names[name], seed=args.seed)
        try:
            flow = case.solve(case.mesh())
        except TargetFailed as error:
            left_out[name] = f"alpha {case.alpha:.1f}, Re {case.reynolds:.0f}: {error.what}"
            write_text(path, json.dumps(dict(sorted(left_out.items())), indent=1) + "\n")
            print(f"{name}: left out, {left_out[name]}", flush=True)
            return
        save_case(folder / f"{name}.npz", case, flow)
        print(
            f"{name}: alpha {case.alpha:.1f}, Re {case.reynolds:.0f}, Cd {flow.drag:.4f}, "
            f"Cl {flow.lift:.4f}, {flow.iterations} iterations, {flow.seconds:.1f} s",
            flush=True,
        )

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, missing))
    return 0


def save_case(path: Path, case: Case, flow: Flow) -> None:
    about = {
        **asdict(case),
        "mesh": {"around": AROUND, "layers": LAYERS, "far": FAR},
        "drag": flow.drag,
        "lift": flow.lift,
        "iterations": flow.iterations,
        "seconds": flow.seconds,
    }
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        about=np.array(json.dumps(about)),
        p=flow.pressure.astype(np.float32),
        U=flow.velocity.astype(np.float32),
    )
    write_bytes(path, buffer.getvalue())


def pack_runs(args: argparse.Namespace) -> int:
    """Write the solved cases into one small file."""
    paths = sorted(args.solved.glob("case-*.npz"))
    if not paths:
        raise BadInput(f"{args.solved} contains no solved cases.", hint="Run `solve` first.")
    pack([read_run(path) for path in paths], args.output)
    print(f"{len(paths)} cases, {args.output.stat().st_size / 1e6:.1f} MB")
    return 0


def export(args: argparse.Namespace) -> int:
    """Write packed flows as one VTK file per case, and their angles and Reynolds numbers as a table."""
    from pinchpoint.systems.operator.files.formats import write_grid

    flows = unpack(args.packed)
    make_folder(args.output)
    for flow in flows:
        write_grid(args.output / f"{flow.name}.vtp", grid_of(flow))
    rows = [f"{flow.name},{flow.about['alpha']:.6g},{flow.about['reynolds']:.6g}" for flow in flows]
    write_text(args.output / "parameters.csv", "\n".join(["case,alpha,Re", *rows, ""]))
    print(f"{len(flows)} cases in {args.output}")
    return 0


def grid_of(flow: NearFlow) -> Any:
    """The cells of a flow as quadrilaterals with the fields p and U."""
    from pinchpoint.systems.operator.files.grid import Cells, Grid

    mesh = flow.mesh()
    points = np.pad(mesh.corners.reshape(-1, 2), ((0, 0), (0, 1)))
    corner = np.arange(len(points)).reshape(mesh.layers + 1, mesh.around)
    after = np.roll(corner, -1, axis=1)
    quads = np.stack([corner[:-1], corner[1:], after[1:], after[:-1]], axis=-1).reshape(-1, 4)
    p, *velocity = flow.fields.reshape(3, -1).astype(np.float32)
    vectors = np.stack([*velocity, np.zeros_like(p)], axis=1)
    return Grid(points, (Cells("quad", quads),), cell_fields={"p": p, "U": vectors})


# Drag, and length of the reversed flow in diameters, by Reynolds number.
PUBLISHED = {
    "Dennis and Chang, J. Fluid Mech. 42 (1970)": {"20": [2.045, 0.94], "40": [1.522, 2.35]},
    "Fornberg, J. Fluid Mech. 98 (1980)": {"20": [2.000, 0.91], "40": [1.498, 2.24]},
}


def validate(args: argparse.Namespace) -> int:
    """Compare a cylinder with published figures, and one aerofoil with itself on other meshes."""
    require_openfoam()
    cylinder = Shape(pole=0.0, offset=0.0, rise=0.0, rounding=0.0)
    record: dict[str, Any] = {
        "what": "aerofoil flows, validation",
        "commands": [script_command()],
        "created": now(),
        "machines": [machine.describe()],
        "published": PUBLISHED,
        "cylinder": [],
        "aerofoil": [],
    }

    def add(group: str, case: Case, *, factor: float, far: float) -> None:
        mesh = mesh_of(case.shape, around=round(AROUND * factor), layers=round(LAYERS * factor), far=far)
        flow = case.solve(mesh)
        row = {"reynolds": case.reynolds, "alpha": case.alpha, "around": mesh.around, "layers": mesh.layers}
        row |= {"far": far, "drag": flow.drag, "lift": flow.lift, "iterations": flow.iterations}
        row |= {"wake": wake_length(mesh, flow)} if group == "cylinder" else {}
        record[group].append(row | {"seconds": flow.seconds})
        print(record[group][-1], flush=True)

    for factor in (1.0, 1.75):
        for reynolds in (20.0, 40.0):
            add("cylinder", Case(cylinder, 0.0, reynolds), factor=factor, far=2 * FAR)
    aerofoil = draw_case(0, seed=args.seed)
    for factor, far in ((0.5, FAR), (1.0, FAR), (1.5, FAR), (1.0, 2 * FAR)):
        add("aerofoil", aerofoil, factor=factor, far=far)
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    return 0


def wake_length(mesh: Mesh, flow: Flow) -> float:
    """Length in diameters of the reversed flow behind a cylinder, from its rear at x = 1."""
    centres, _ = mesh.centres()
    x, u = (values.reshape(mesh.layers, mesh.around) for values in (centres[:, 0], flow.velocity[:, 0]))
    along = [(v[:, 0] + v[:, -1]) / 2 for v in (x, u)]  # the cells above and below the axis of the wake
    first = int(np.argmax(along[1] > 0))
    if not first:
        raise BadInput("The flow behind the body is not reversed.", hint="Use a Reynolds number above 7.")
    (x0, x1), (u0, u1) = (values[first - 1 : first + 1] for values in along)
    return float(x0 - u0 * (x1 - x0) / (u1 - u0)) - 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    verbs = parser.add_subparsers(required=True)
    solver = verbs.add_parser("solve", help="Run simpleFoam for the cases that SOLVED lacks.")
    solver.add_argument("solved", type=Path)
    solver.add_argument("--cases", type=int, default=200)
    solver.add_argument("--seed", type=int, default=0)
    solver.add_argument("--jobs", type=int, default=1, help="Cases solved at the same time.")
    solver.set_defaults(do=solve)
    packer = verbs.add_parser("pack", help="Write the solved cases, near their bodies, into one file.")
    packer.add_argument("solved", type=Path)
    packer.add_argument("-o", "--output", type=Path, default=PACKED)
    packer.set_defaults(do=pack_runs)
    exporter = verbs.add_parser("export", help="Write packed flows as VTK files with p and U.")
    exporter.add_argument("packed", type=Path, nargs="?", default=PACKED)
    exporter.add_argument("-o", "--output", type=Path, required=True)
    exporter.set_defaults(do=export)
    check = verbs.add_parser("validate", help="Compare with published figures of a cylinder.")
    check.add_argument("-o", "--output", type=Path, required=True)
    check.add_argument("--seed", type=int, default=0)
    check.set_defaults(do=validate)
    try:
        args = parser.parse_args()
        return args.do(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
