"""One OpenFOAM case: writing it, running simpleFoam, and reading its fields.

The flow is steady, laminar and incompressible; the inflow has speed 1 and the chord is 1, so that the
kinematic viscosity is 1 / Re. simpleFoam is needed (`apt install openfoam`; v1912 was used).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from shapes import Array, Mesh

from pinchpoint.core.errors import BadInput, TargetFailed

Labels = NDArray[np.int64]
DEBIAN = Path("/usr/share/openfoam")  # where Debian puts etc/, which OpenFOAM's programs look for


@dataclass(frozen=True)
class Flow:
    """A converged flow: values at the cells, pressure at the body's faces, and force coefficients."""

    pressure: Array  # (cells,)
    velocity: Array  # (cells, 2)
    wall_pressure: Array  # (around,)
    drag: float
    lift: float
    iterations: int
    seconds: float


def require_openfoam() -> None:
    if shutil.which("simpleFoam") is None:
        raise BadInput(
            "simpleFoam is not installed.",
            hint="Install OpenFOAM (Debian and Ubuntu: apt install openfoam), or use the packed flows.",
        )


def write_case(folder: Path, mesh: Mesh, *, alpha: float, reynolds: float, iterations: int) -> None:
    """Write a case whose inflow has the angle `alpha` in degrees."""
    _write_mesh(folder / "constant" / "polyMesh", mesh)
    inflow = np.array([np.cos(np.radians(alpha)), np.sin(np.radians(alpha))])
    along = f"({inflow[0]:.9g} {inflow[1]:.9g} 0)"
    across = f"({-inflow[1]:.9g} {inflow[0]:.9g} 0)"
    files = {
        "0/U": _FIELD.format(
            kind="volVectorField",
            name="U",
            dimensions="[0 1 -1 0 0 0 0]",
            value=along,
            body="type noSlip;",
            far=f"type freestreamVelocity; freestreamValue uniform {along};",
        ),
        "0/p": _FIELD.format(
            kind="volScalarField",
            name="p",
            dimensions="[0 2 -2 0 0 0 0]",
            value="0",
            body="type zeroGradient;",
            far="type freestreamPressure; freestreamValue uniform 0;",
        ),
        "constant/transportProperties": f"transportModel Newtonian;\nnu {1 / reynolds:.9g};\n",
        "constant/turbulenceProperties": "simulationType laminar;\n",
        "system/controlDict": _CONTROL.format(iterations=iterations, along=along, across=across),
        "system/fvSchemes": _SCHEMES,
        "system/fvSolution": _SOLUTION,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = _between(text, "//class ", "\n") or "dictionary"
        path.write_text(_header(kind, path.name) + text)


def run_case(folder: Path, mesh: Mesh, *, timeout_s: float) -> Flow:
    """Run simpleFoam; raise TargetFailed if it fails or stops before it has converged."""
    environment = os.environ | ({"WM_PROJECT_DIR": str(DEBIAN)} if DEBIAN.is_dir() else {})
    try:
        result = subprocess.run(
            ["simpleFoam", "-case", str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TargetFailed(
            f"simpleFoam did not end within {timeout_s:.0f} s.", hint="Use a coarser mesh, or fewer jobs."
        ) from error
    (folder / "log").write_text(result.stdout)
    if result.returncode:
        raise TargetFailed(
            f"simpleFoam failed: {result.stderr.strip()[:300] or result.stdout[-300:]}",
            hint="Check that simpleFoam runs on a case of your own.",
        )
    match = re.search(r"SIMPLE solution converged in (\d+) iterations", result.stdout)
    if match is None:
        raise TargetFailed(
            "simpleFoam did not converge to a steady flow.",
            hint="Use a smaller angle or Reynolds number: the flow may shed vortices.",
        )
    clocks = re.findall(r"ExecutionTime = ([\d.]+) s", result.stdout)
    last = folder / match[1]
    cells = mesh.layers * mesh.around
    velocity = _internal(last / "U", cells, 3)[:, :2]
    pressure = _internal(last / "p", cells, 1)[:, 0]
    forces = np.loadtxt(folder / "postProcessing" / "forces" / "0" / "coefficient.dat", comments="#", ndmin=2)
    columns = _columns(folder / "postProcessing" / "forces" / "0" / "coefficient.dat")
    return Flow(
        pressure=pressure,
        velocity=velocity,
        wall_pressure=pressure[: mesh.around],  # zero normal gradient: the value in the first cell
        drag=float(forces[-1, columns.index("Cd")]),
        lift=float(forces[-1, columns.index("Cl")]),
        iterations=int(match[1]),
        seconds=float(clocks[-1]),
    )


def _columns(path: Path) -> list[str]:
    headings = [line for line in path.read_text().splitlines() if line.startswith("#")]
    return headings[-1].lstrip("# ").split()


def _internal(path: Path, count: int, width: int) -> Array:
    text = path.read_text()
    start = text.index("(", text.index("internalField   nonuniform")) + 1
    values = np.fromstring(
        text[start : text.index("\n)\n", start)].replace("(", " ").replace(")", " "), sep=" "
    )
    return values.reshape(count, width)


def _write_mesh(folder: Path, mesh: Mesh) -> None:
    """Write points, faces, owners and neighbours of the mesh, one cell thick in z."""
    layers, around = mesh.layers, mesh.around
    flat = mesh.corners.reshape(-1, 2)
    count = len(flat)
    points = np.concatenate([np.pad(flat, ((0, 0), (0, 1)), constant_values=z) for z in (0.0, 1.0)])
    corner = np.arange(count).reshape(layers + 1, around)
    after = np.roll(corner, -1, axis=1)  # the next corner along the ring
    cell = np.arange(layers * around).reshape(layers, around)

    def walls(start: Labels, end: Labels) -> Labels:
        """Faces (n, 4) whose normal is to the right of the edges from start to end."""
        return np.stack([start, end, end + count, start + count], axis=-1).reshape(-1, 4)

    # Cells are numbered ring after ring, and the cell with the smaller number owns a face. Along a ring the
    # face between a cell and the next points to the next, except at the seam between the last and the first.
    to_next, to_first = walls(after[1:, :-1], after[:-1, :-1]), walls(after[:-1, -1], after[1:, -1])
    outwards = walls(corner[1:-1], after[1:-1])
    owner = np.concatenate([cell[:, :-1].ravel(), cell[:, 0], cell[:-1].ravel()])
    neighbour = np.concatenate([cell[:, 1:].ravel(), cell[:, -1], cell[1:].ravel()])
    order = np.lexsort((neighbour, owner))  # the order that OpenFOAM requires
    inner = np.concatenate([to_next, to_first, outwards])[order]
    ring = np.stack([corner[:-1], corner[1:], after[1:], after[:-1]], axis=-1).reshape(-1, 4)
    patches = {
        "body": ("wall", walls(after[0], corner[0]), cell[0]),
        "far": ("patch", walls(corner[-1], after[-1]), cell[-1]),
        "low": ("empty", ring[:, ::-1], cell.ravel()),
        "high": ("empty", ring + count, cell.ravel()),
    }
    faces = np.concatenate([inner, *(rows for _, rows, _ in patches.values())])
    owners = np.concatenate([owner[order], *(cells for _, _, cells in patches.values())])
    entries, start = [], len(inner)
    for name, (kind, rows, _) in patches.items():
        entries.append(f"{name} {{ type {kind}; nFaces {len(rows)}; startFace {start}; }}")
        start += len(rows)
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind, lines in (
        ("points", "vectorField", [f"({x:.12g} {y:.12g} {z:g})" for x, y, z in points.tolist()]),
        ("faces", "faceList", [f"4({a} {b} {c} {d})" for a, b, c, d in faces.tolist()]),
        ("owner", "labelList", map(str, owners.tolist())),
        ("neighbour", "labelList", map(str, neighbour[order].tolist())),
        ("boundary", "polyBoundaryMesh", entries),
    ):
        text = list(lines)
        (folder / name).write_text(_header(kind, name) + "\n".join([str(len(text)), "(", *text, ")", ""]))


def _header(kind: str, name: str) -> str:
    return f"FoamFile\n{{ version 2.0; format ascii; class {kind}; object {name}; }}\n"


def _between(text: str, start: str, end: str) -> str:
    return text.split(start, 1)[1].split(end, 1)[0] if start in text else ""


_FIELD = """//class {kind}
dimensions {dimensions};
internalField uniform {value};
boundaryField
{{
    body {{ {body} }}
    far {{ {far} }}
    low {{ type empty; }}
    high {{ type empty; }}
}}
"""
_CONTROL = """
application simpleFoam;
startFrom startTime; startTime 0; stopAt endTime; endTime {iterations}; deltaT 1;
writeControl timeStep; writeInterval {iterations}; purgeWrite 1;
writeFormat ascii; writePrecision 9; timeFormat general; timePrecision 9;
functions
{{
    forces
    {{
        type forceCoeffs; libs (forces); writeControl timeStep; writeInterval 10; log false;
        patches (body); rho rhoInf; rhoInf 1; magUInf 1; lRef 1; Aref 1; CofR (0 0 0);
        dragDir {along}; liftDir {across}; pitchAxis (0 0 1);
    }}
}}
"""
_SCHEMES = """
ddtSchemes { default steadyState; }
gradSchemes { default Gauss linear; }
divSchemes
{
    default none;
    div(phi,U) bounded Gauss linearUpwind grad(U);
    div((nuEff*dev2(T(grad(U))))) Gauss linear;
}
laplacianSchemes { default Gauss linear corrected; }
interpolationSchemes { default linear; }
snGradSchemes { default corrected; }
"""
_SOLUTION = """
solvers
{
    p { solver GAMG; smoother GaussSeidel; tolerance 1e-9; relTol 0.05; }
    U { solver smoothSolver; smoother symGaussSeidel; tolerance 1e-9; relTol 0.1; }
}
SIMPLE
{
    nNonOrthogonalCorrectors 0;
    consistent yes;
    residualControl { p 1e-5; U 1e-6; }
}
relaxationFactors { equations { U 0.9; } }
"""
