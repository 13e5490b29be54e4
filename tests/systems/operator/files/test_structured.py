"""Structured grids of VTK and LZ4 are read as VTK wrote them; broken ones are refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.operator.data.own.collection import make_own_dataset  # noqa: E402
from pinchpoint.systems.operator.files.formats import read_grid  # noqa: E402
from pinchpoint.systems.operator.files.lz4_block import decompress_lz4  # noqa: E402

# 40 x 2 points, and number // 3 of each cell, as VTK 9.7 wrote them with its compressor LZ4.
BY_VTK = (
    '<VTKFile type="ImageData" version="0.1" byte_order="LittleEndian" header_type="UInt32" '
    'compressor="vtkLZ4DataCompressor"><ImageData WholeExtent="0 39 0 1 0 0" Origin="0 0 0" '
    'Spacing="1 1 1" Direction="1 0 0 0 1 0 0 0 1"><Piece Extent="0 39 0 1 0 0"><PointData></PointData>'
    '<CellData Scalars="n"><DataArray type="Int64" Name="n" format="binary">'
    "AQAAAACAAAA4AQAAXwAAAA==HwABAAQTARgADAgAEwIYAAwIABMDGAAMCAATBBgADAgAEwUYAAwIABMGGAAMCAATBxgADAgA"
    "EwgYAAwIABMJGAAMCAATChgADAgAEwsYAAwIABMMGAAHCABQAAAAAAA=</DataArray></CellData></Piece></ImageData>"
    "</VTKFile>"
)


HEAD = "# vtk DataFile Version 3.0\nby hand\nASCII\nDATASET "
FIELDS = "POINT_DATA 6\nSCALARS p double 1\nLOOKUP_TABLE default\n0 1 2 3 4 5\nCELL_DATA 2\nVECTORS U float\n"
FIELDS += "1 2 3 4 5 6\n"
# The same 3 x 2 points with x = 1, 2, 3 and y = 0, 5 in each kind of structured dataset.
LEGACY = {
    "STRUCTURED_POINTS": "DIMENSIONS 3 2 1\nORIGIN 1 0 0\nSPACING 1 5 1\n",
    "STRUCTURED_GRID": "DIMENSIONS 3 2 1\nPOINTS 6 float\n1 0 0 2 0 0 3 0 0 1 5 0 2 5 0 3 5 0\n",
    "RECTILINEAR_GRID": "DIMENSIONS 3 2 1\nX_COORDINATES 3 float\n1 2 3\nY_COORDINATES 2 float\n0 5\n"
    "Z_COORDINATES 1 float\n0\n",
}
LEGACY = {name: f"{HEAD}{name}\n{text}{FIELDS}" for name, text in LEGACY.items()}


def xml(kind: str, piece: str, *, attributes: str = "", extent: str = "0 2 0 1 0 1") -> str:
    return (
        f'<VTKFile type="{kind}"><{kind} WholeExtent="{extent}" {attributes}><Piece Extent="{extent}">{piece}'
        f"</Piece></{kind}></VTKFile>"
    )


def array(values: object, *, name: str = "a", width: int = 1, kind: str = "Float64") -> str:
    numbers = " ".join(str(value) for value in np.asarray(values).reshape(-1))
    head = f'type="{kind}" Name="{name}" NumberOfComponents="{width}" format="ascii"'
    return f"<DataArray {head}>{numbers}</DataArray>"


def curved(steps: int = 5, *, cells: str = "", turn: float = 0.0) -> str:
    """A quarter of a ring in the plane x, y, with x at its points as `p`."""
    radii, angles = np.linspace(1, 2, 3), np.linspace(0, np.pi / 2, steps) + turn
    x, y = (np.outer(wave(angles), radii) for wave in (np.cos, np.sin))
    points = np.stack([x, y, np.zeros_like(x)], axis=-1)
    piece = f"<PointData>{array(x, name='p')}</PointData><CellData>{cells}</CellData>"
    piece += f"<Points>{array(points, width=3)}</Points>"
    return xml("StructuredGrid", piece, extent=f"0 2 0 {steps - 1} 0 0")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_an_image_that_vtk_compressed_by_lz4_is_read(tmp_path: Path) -> None:
    grid = read_grid(write(tmp_path / "a.vti", BY_VTK))
    assert grid.cells[0].kind == "quad" and grid.cells[0].corners[1].tolist() == [1, 2, 42, 41]
    assert grid.cell_fields["n"].tolist() == [number // 3 for number in range(39)]
    assert grid.points[41].tolist() == [1, 1, 0] and len(grid.points) == 80


def test_bytes_of_lz4_are_copied_and_repeated() -> None:
    # "abc", then 19 + 6 bytes that begin 3 before the end, then "xyz".
    assert decompress_lz4(b"\x3fabc\x03\x00\x06\x30xyz", 31) == b"abc" * 9 + b"a" + b"xyz"
    # 15 + 255 + 2 bytes to copy.
    assert decompress_lz4(b"\xf0\xff\x02" + bytes(272), 272) == bytes(272)
    for damage in (b"\x3fabc\x04\x00\x06\x30xyz", b"\x3fab", b"\x30abcd", b"\x3fabc\x00\x00\x06\x30xyz"):
        with pytest.raises((ValueError, IndexError)):
            decompress_lz4(damage, 31)


def test_the_cells_of_a_uniform_and_of_a_rectilinear_grid_are_boxes(tmp_path: Path) -> None:
    attributes = 'Origin="1 0 0" Spacing="0.5 2 3" Direction="0 -1 0 1 0 0 0 0 1"'
    uniform = read_grid(write(tmp_path / "a.vti", xml("ImageData", "", attributes=attributes)))
    assert uniform.cells[0].kind == "hexahedron" and uniform.cell_count == 2
    # Steps along the first axis go along y, and along the second one against x.
    assert uniform.points[[1, 3, 6]].tolist() == [[1, 0.5, 0], [-1, 0, 0], [1, 0, 3]]
    axes = "".join(array(values) for values in ([0, 1, 4], [5, 7], [0, 2]))
    piece = f"<Coordinates>{axes}</Coordinates>"
    grid = read_grid(write(tmp_path / "a.vtr", xml("RectilinearGrid", piece)))
    second = grid.points[grid.cells[0].corners[1]]
    # In the order of a hexahedron: around the lower side, then around the upper one.
    lower = [[1, 5, 0], [4, 5, 0], [4, 7, 0], [1, 7, 0]]
    assert second.tolist() == [*lower, *([x, y, 2] for x, y, _ in lower)]


@pytest.mark.parametrize("name", LEGACY)
def test_structured_grids_in_legacy_files_have_their_cells_and_fields(tmp_path: Path, name: str) -> None:
    grid = read_grid(write(tmp_path / "a.vtk", LEGACY[name]))
    assert grid.points.tolist() == [[1, 0, 0], [2, 0, 0], [3, 0, 0], [1, 5, 0], [2, 5, 0], [3, 5, 0]]
    assert grid.cells[0].kind == "quad" and grid.cells[0].corners.tolist() == [[0, 1, 4, 3], [1, 2, 5, 4]]
    assert grid.point_fields["p"].tolist() == [0, 1, 2, 3, 4, 5]
    assert grid.cell_fields["U"].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_hidden_cells_are_left_out_with_their_values(tmp_path: Path) -> None:
    marks = array([0, 32, 0, 0, 33, 0, 0, 1], name="vtkGhostType", kind="UInt8")
    grid = read_grid(write(tmp_path / "a.vts", curved(cells=marks + array(range(8), name="n"))))
    assert grid.cell_fields["n"].tolist() == [0, 2, 3, 5, 6, 7] and grid.cell_count == 6


def test_curved_grids_are_cases_like_others(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for number in range(3):
        write(tmp_path / "runs" / f"c{number}.vts", curved(33, turn=0.3 * number))
    dataset, _ = make_own_dataset(tmp_path / "runs", tmp_path / "mine")
    sample = dataset.sample("case-c1")
    assert dataset.targets == ("p",) and len(sample.points) == 99
    assert sample.areas.sum().item() == pytest.approx(np.pi * (4 - 1) / 4, rel=1e-3)
    assert np.allclose(sample.target[:, 0], sample.points[:, 0])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.vts", curved().replace("0 4 0 0", "0 5 0 0"), "it has 15 points, but 3 x 6 x 1 are expected"),
        ("a.vts", curved().replace("0 4 0 0", "0 -1 0 0"), "along the axes are"),
        ("a.vts", curved().replace('Piece Extent="0 2 ', 'Piece Extent="'), "its Extent is"),
        ("a.vts", BY_VTK, "it contains ImageData, not StructuredGrid"),
        ("a.vti", BY_VTK.replace("0 39 0 1 0 0", "0 99999999 0 99 0 99"), "at most 50,000,000"),
        ("a.vti", BY_VTK.replace("<Piece", '<Piece Extent="0 1 0 1 0 0"/><Piece'), "it has 2 pieces"),
        ("a.vti", BY_VTK.replace("HwABAAQTARgA", "HwABAAQTARgB"), "a compressed block is damaged"),
        ("a.vti", BY_VTK.replace("0 39 0 1 0 0", "0 40 0 1 0 0"), "has 40 cells, but 39 values of 'n'"),
        ("a.vtk", LEGACY["STRUCTURED_POINTS"].replace("3 2 1", "3 2"), "along the axes are"),
        ("a.vtk", LEGACY["STRUCTURED_GRID"].replace("3 2 1", "3 3 1"), "it has 6 points, but 3 x 3 x 1"),
        ("a.vtk", LEGACY["RECTILINEAR_GRID"].replace("3 2 1", "4 2 1"), "coordinates along its axes"),
        ("a.vtk", LEGACY["RECTILINEAR_GRID"].replace("RECTILINEAR", "BLOCK"), "fourth line does not name"),
        (
            "a.vtk",
            LEGACY["STRUCTURED_GRID"].replace("CELL_DATA 2", "CELL_DATA 1").replace(" 4 5 6\n", "\n"),
            "2 cells, but 1 values of 'U'",
        ),
        ("a.vtr", xml("RectilinearGrid", "<Coordinates/>"), "its Coordinates have 0 arrays, not 3"),
    ],
)
def test_a_broken_structured_grid_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_grid(write(tmp_path / name, text))
