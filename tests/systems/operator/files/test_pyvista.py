"""Files exchanged with PyVista, the reader and writer most users of VTK files have.

PyVista is not a dependency: VTK takes 570 MB. `pip install pyvista` lets these tests run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the operator needs torch")
pv: Any = pytest.importorskip("pyvista", reason="PyVista is not installed: VTK takes 570 MB")

from pinchpoint.systems.operator.data.surface import facets  # noqa: E402
from pinchpoint.systems.operator.files.formats import read_grid, write_grid  # noqa: E402
from pinchpoint.systems.operator.files.grid import Cells, Grid  # noqa: E402
from pinchpoint.systems.operator.files.meshes import check_mesh, read_mesh  # noqa: E402


def fields(mesh: Any) -> Any:
    """A PyVista mesh with a scalar and a vector, on its points and on its cells, and a number."""
    mesh.clear_data()
    mesh.point_data["p"] = mesh.points[:, 0].astype(np.float32)
    mesh.cell_data["U"] = np.asarray(mesh.cell_centers().points, dtype=np.float64)
    mesh.field_data["alpha"] = np.array([3.5])
    return mesh


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("suffix", ["vtp", "vtk"])
def test_a_surface_of_pyvista_keeps_its_fields(tmp_path: Path, suffix: str, binary: bool) -> None:
    mesh = fields(pv.Sphere(theta_resolution=8, phi_resolution=6))
    mesh.save(tmp_path / f"a.{suffix}", binary=binary)
    grid = read_grid(tmp_path / f"a.{suffix}")
    assert np.allclose(grid.points, mesh.points) and grid.cell_count == mesh.n_cells
    assert np.allclose(grid.point_fields["p"], mesh.points[:, 0], atol=1e-6)
    assert np.allclose(grid.cell_fields["U"], mesh.cell_centers().points, atol=1e-6)
    assert grid.values["alpha"] == 3.5


@pytest.mark.parametrize("suffix", ["vtu", "vtk"])
def test_a_volume_of_pyvista_keeps_its_fields(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("meshio", reason="volumes are read by meshio")
    mesh = fields(pv.ImageData(dimensions=(3, 4, 5)).cast_to_unstructured_grid())
    mesh.save(tmp_path / f"a.{suffix}")
    grid = read_grid(tmp_path / f"a.{suffix}")
    assert grid.cell_count == 24 and grid.dimension == 3
    assert np.allclose(grid.point_fields["p"], mesh.points[:, 0])
    assert np.allclose(grid.cell_fields["U"], mesh.cell_centers().points)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("kind", ["vti", "vtr", "vts"])
def test_a_structured_grid_of_pyvista_keeps_its_cells_and_fields(
    tmp_path: Path, kind: str, legacy: bool
) -> None:
    axes = [np.array([0.0, 1, 3]), np.array([0.0, 2, 3, 7]), np.array([1.0, 2])]
    mesh = {
        "vti": lambda: pv.ImageData(dimensions=(3, 4, 2), spacing=(1, 0.5, 2), origin=(1, 2, 3)),
        "vtr": lambda: pv.RectilinearGrid(*axes),
        "vts": lambda: pv.StructuredGrid(*np.meshgrid(*axes)),
    }[kind]()
    path = tmp_path / f"a.{'vtk' if legacy else kind}"
    fields(mesh).save(path)
    grid = read_grid(path)
    middles = grid.points[grid.cells[0].corners].mean(axis=1)
    assert np.allclose(grid.points, mesh.points) and np.allclose(middles, mesh.cell_centers().points)
    assert np.allclose(grid.cell_fields["U"], middles) and grid.values["alpha"] == 3.5


@pytest.mark.parametrize("suffix", ["stl", "obj", "ply", "vtp", "vtk"])
def test_a_closed_surface_of_pyvista_is_read_as_it_is(tmp_path: Path, suffix: str) -> None:
    if suffix in ("stl", "ply"):
        pytest.importorskip("meshio", reason="this kind of file needs meshio")
    mesh = pv.Box().triangulate()
    mesh.save(tmp_path / f"a.{suffix}")
    read = check_mesh(read_mesh(tmp_path / f"a.{suffix}"))
    assert float(facets(read).areas.sum()) == pytest.approx(mesh.area, rel=1e-6)


@pytest.mark.parametrize("suffix", ["vtp", "vtu", "vtk"])
def test_pyvista_opens_what_is_written(tmp_path: Path, suffix: str) -> None:
    if suffix != "vtp":
        pytest.importorskip("meshio", reason="this kind of file needs meshio")
    points = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 0.5, 0]])
    cells = (Cells("quad", np.array([[0, 1, 2, 3]])), Cells("triangle", np.array([[1, 4, 2]])))
    values = {"wallShearStress": np.arange(6.0).reshape(2, 3)}
    file = write_grid(tmp_path / f"a.{suffix}", Grid(points, cells, {"p": np.arange(5.0)}, values))
    mesh = pv.read(file)
    assert mesh.n_points == 5 and mesh.n_cells == 2
    assert np.allclose(mesh.point_data["p"], np.arange(5.0))
    assert np.allclose(mesh.cell_data["wallShearStress"], values["wallShearStress"])
    assert mesh.compute_cell_sizes()["Area"].tolist() == pytest.approx([1.0, 0.5])


def test_pyvista_opens_points_without_cells(tmp_path: Path) -> None:
    cells = (Cells("vertex", np.arange(4)[:, None]),)
    write_grid(tmp_path / "a.vtp", Grid(np.eye(4, 3), cells, {"p": np.arange(4.0)}))
    assert np.allclose(pv.read(tmp_path / "a.vtp").point_data["p"], np.arange(4.0))
