"""Reading and writing of grids by file type, and the tables (npz, csv, HDF5) that hold arrays by name.

VTK and obj files are read without a library. stl and ply are read by meshio, which also writes vtu and vtk,
and HDF5 is read by h5py. Both are imported only then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import check_output
from pinchpoint.core.units import show_choices
from pinchpoint.systems.common.data import sample_file
from pinchpoint.systems.operator.files import vtk_xml
from pinchpoint.systems.operator.files.csv_tables import join_columns, read_csv
from pinchpoint.systems.operator.files.grid import Cells, Grid, UnknownCells, cells_of
from pinchpoint.systems.operator.files.obj import read_obj
from pinchpoint.systems.operator.files.vtk_legacy import read_vtk_legacy

MESHES = (".stl", ".obj", ".ply", ".vtk", *vtk_xml.KINDS)
TABLES = (".npz", ".csv", ".h5", ".hdf5")
WRITES = (".vtp", ".vtu", ".vtk")
PLACES = ("points", "Points", "coordinates", "positions", "vertices")
FACES = ("cells", "faces", "triangles", "elements")
_PLY_TYPES = frozenset(
    b"char uchar short ushort int uint float double "
    b"int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32 float64".split()
)


def read_grid(path: str | Path) -> Grid:
    """The grid of a mesh file or a table, unchecked except that its cells and fields fit its points."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (*MESHES, *TABLES):
        raise BadInput(
            f"A mesh cannot be read from {path.name!r}: its file type is not supported.",
            hint=f"Give a file that ends in {show_choices((*MESHES, *TABLES))}.",
        )
    check_readable(path)
    if suffix in TABLES:
        return table_grid(path, read_table(path))
    if suffix in vtk_xml.KINDS:
        grid = vtk_xml.read_vtk_xml(path)
    elif suffix == ".vtk":
        grid = read_vtk_legacy(path)
    elif suffix == ".obj":
        grid = read_obj(path)
    else:
        if suffix == ".ply":
            _check_ply(path)
        grid = _read_with_meshio(path)
    return check_grid(grid, path)


def check_readable(path: Path) -> None:
    if not path.is_file():
        raise BadInput(f"The file {path} does not exist.", hint="Name a mesh that exists.")
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path} is not readable.", hint="Change its permissions, or copy it.")


def check_grid(grid: Grid, path: Path) -> Grid:
    """The grid itself. Raises `BadInput` if a cell has a point that does not exist, or a field other rows."""
    for block in grid.cells:
        if len(block.corners) and (block.corners.min() < 0 or block.corners.max() >= len(grid.points)):
            raise BadInput(
                f"{path} has faces with vertices that do not exist.", hint="Export the mesh again."
            )
    for what, fields, count in (
        ("points", grid.point_fields, len(grid.points)),
        ("cells", grid.cell_fields, grid.cell_count),
    ):
        for name, values in fields.items():
            if len(values) != count:
                raise BadInput(
                    f"{path} has {count:,} {what}, but {len(values):,} values of {name!r}.",
                    hint="Export it again; every field needs one value per point or per cell.",
                )
    return grid


def read_table(path: Path) -> dict[str, np.ndarray]:
    """The arrays of numbers in an .npz, .csv or HDF5 file, by name. Columns such as U_x, U_y become one."""
    check_readable(path)
    try:
        if path.suffix.lower() == ".npz":
            arrays = sample_file.load_npz(path)
        elif path.suffix.lower() == ".csv":
            arrays = read_csv(path)
        else:
            arrays = _read_hdf5(path)
    except sample_file.FAILURES as error:
        raise BadInput(
            f"{path} cannot be read: {str(error)[:200].rstrip('.')}.",
            hint="Write it again as .npz with numpy.savez, or as .csv with a line of names.",
        ) from error
    numbers = {}
    for name, values in arrays.items():
        if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
            numbers[name] = values
    return numbers


def table_grid(path: Path, arrays: Mapping[str, np.ndarray]) -> Grid:
    """Points with fields, and cells if there are any, from arrays by name."""
    key = next((name for name in PLACES if name in arrays), None)
    if key is None:
        raise BadInput(
            f"{path} has no points: its arrays are {', '.join(sorted(arrays)) or 'none'}.",
            hint="Name the coordinates x, y and z (csv), or `points` with a row per point (npz, HDF5).",
        )
    points = _points(arrays[key], path)
    key_cells = next((name for name in FACES if name in arrays and arrays[name].ndim == 2), None)
    cells: tuple[Cells, ...] = ()
    if key_cells is not None:
        cells = (_table_cells(arrays[key_cells], flat=arrays[key].shape[1] == 2, path=path),)
    grid = Grid(points, cells)
    rest = {name: values for name, values in arrays.items() if name not in (key, key_cells)}
    return check_grid(with_table(grid, rest, path), path)


def with_table(grid: Grid, arrays: Mapping[str, np.ndarray], path: Path) -> Grid:
    """The grid with fields from a table: arrays with a row per point or per cell, and single numbers."""
    at_points, at_cells, values = dict(grid.point_fields), dict(grid.cell_fields), dict(grid.values)
    for name, array in arrays.items():
        if array.size == 1 and len(grid.points) != 1:
            values[name] = float(array.reshape(-1)[0])
        elif len(array) == len(grid.points) and array.ndim <= 2:
            at_points[name] = _single(array)
        elif len(array) == grid.cell_count and array.ndim <= 2:
            at_cells[name] = _single(array)
        else:
            raise BadInput(
                f"{name!r} in {path} has shape {array.shape}, but the mesh has "
                f"{len(grid.points):,} points and {grid.cell_count:,} cells.",
                hint="Give one row per point or per cell, in the order of the mesh file.",
            )
    return Grid(grid.points, grid.cells, at_points, at_cells, values)


def write_grid(path: Path, grid: Grid) -> Path:
    """Write a grid with its fields as .vtp, .vtu or .vtk, which ParaView opens."""
    if path.suffix.lower() not in WRITES:
        raise BadInput(
            f"Fields cannot be written to {path.name!r}.",
            hint=f"Name a file that ends in {show_choices(WRITES)}.",
        )
    check_output(path)
    if path.suffix.lower() == ".vtp":
        if grid.dimension > 2:
            raise BadInput(
                f"{path.name} cannot hold cells that have a volume.", hint="Name a file that ends in .vtu."
            )
        return vtk_xml.write_vtp(path, grid)
    meshio = import_meshio(path)
    ends = np.cumsum([len(block.corners) for block in grid.cells])[:-1]
    mesh = meshio.Mesh(
        grid.points,
        [(block.kind, block.corners) for block in grid.cells],
        point_data=grid.point_fields,
        cell_data={name: np.split(values, ends) for name, values in grid.cell_fields.items()},
    )
    beside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        meshio.write(beside, mesh)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def import_meshio(path: Path) -> ModuleType:
    try:
        import meshio
    except ModuleNotFoundError as error:
        raise Missing(
            f"{path.suffix} files need meshio, which is not installed.",
            hint='Run pip install "pinchpoint[operator]", or use .vtp.',
        ) from error
    return meshio


def _check_ply(path: Path) -> None:
    """Raise BadInput if the header claims more elements than the file has bytes; meshio would search."""
    data = path.read_bytes()
    header = data.partition(b"end_header")[0]
    counts = [int(digits[:20]) for digits in re.findall(rb"^element +\w+ +(\d+)", header, re.MULTILINE)]
    kinds = re.findall(rb"^property +list +(\S+) +(\S+)", header, re.MULTILINE)
    if max(counts, default=0) > len(data) or not _PLY_TYPES.issuperset(
        kind for pair in kinds for kind in pair
    ):
        raise BadInput(
            f"{path} cannot be read: its header claims more than the file holds, or has unknown types.",
            hint="Export it again as .vtp or .stl.",
        )


def _read_with_meshio(path: Path) -> Grid:
    meshio = import_meshio(path)
    reader = getattr(meshio, path.suffix.lower()[1:]).read
    try:
        # An ASCII .stl is first tried as binary, where its text looks like a huge count.
        with np.errstate(over="ignore"):
            mesh = reader(str(path))
        return _from_meshio(mesh)
    except (Exception, SystemExit) as error:  # a parser can fail in any way on arbitrary bytes
        # meshio's own errors say what is wrong with the file; any other is about its code.
        why = str(error) if isinstance(error, meshio.ReadError | UnknownCells) else ""
        why = why.rstrip(".") or f"it is not a valid {path.suffix.lower()} file"
        raise BadInput(f"{path} cannot be read: {why}.", hint="Export it again as .vtp or .stl.") from error


def _from_meshio(mesh: Any) -> Grid:
    points = np.asarray(mesh.points, dtype=np.float64)
    if points.shape[1] == 2:
        points = np.pad(points, [(0, 0), (0, 1)])
    values = {name: np.asarray(array) for name, array in mesh.field_data.items()}
    return Grid(
        points,
        tuple(cells_of(block.type, block.data) for block in mesh.cells),
        {name: _single(np.asarray(array)) for name, array in mesh.point_data.items()},
        {name: _single(np.concatenate(parts)) for name, parts in mesh.cell_data.items()},
        {
            name: float(array.reshape(-1)[0])
            for name, array in values.items()
            if array.size == 1 and array.dtype.kind in "fiu"
        },
    )


def _single(array: np.ndarray) -> np.ndarray:
    """(n,) of (n, 1); anything else unchanged."""
    return array[:, 0] if array.shape[1:] == (1,) else array


def _read_hdf5(path: Path) -> dict[str, np.ndarray]:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise Missing(
            f"{path.suffix} files need h5py, which is not installed.",
            hint='Run pip install "pinchpoint[operator]", or use .npz.',
        ) from error
    arrays: dict[str, np.ndarray] = {}

    def add(name: str, part: Any) -> None:
        if isinstance(part, h5py.Dataset):
            arrays[name.rsplit("/", 1)[-1]] = np.asarray(part)

    with h5py.File(path, "r") as file:
        file.visititems(add)
        arrays |= {name: np.asarray(value) for name, value in file.attrs.items()}
    return join_columns(arrays) if "points" not in arrays else arrays


def _points(values: np.ndarray, path: Path) -> np.ndarray:
    if values.ndim != 2 or values.shape[1] not in (2, 3) or not len(values):
        raise BadInput(
            f"The points in {path} have shape {values.shape}, not (points, 2) or (points, 3).",
            hint="Give one row of two or three coordinates per point.",
        )
    return np.pad(values.astype(np.float64), [(0, 0), (0, 3 - values.shape[1])])


def _table_cells(corners: np.ndarray, *, flat: bool, path: Path) -> Cells:
    """Cells of a table: the number of columns decides their kind, with four columns also the dimension."""
    kinds = {2: "line", 3: "triangle", 4: "quad" if flat else "tetra", 6: "wedge", 8: "hexahedron"}
    if corners.shape[1] not in kinds or corners.dtype.kind not in "iu":
        raise BadInput(
            f"The cells in {path} have shape {corners.shape} and type {corners.dtype}.",
            hint="Give whole numbers of points, with 2 (lines), 3 (triangles), 4 (quadrilaterals in 2-D, "
            "tetrahedra in 3-D), 6 (wedges) or 8 (hexahedra) per row.",
        )
    return Cells(kinds[corners.shape[1]], corners.astype(np.int64))
