"""Users' own cases: every file type gives the same dataset, and every kind of bad case is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.operator.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.operator.data.own.cells import moment_names, wall_moments  # noqa: E402
from pinchpoint.systems.operator.data.own.collection import Choices, make_own_dataset  # noqa: E402
from pinchpoint.systems.operator.files.formats import write_grid  # noqa: E402
from pinchpoint.systems.operator.files.grid import Cells, Grid  # noqa: E402
from pinchpoint.systems.operator.training.runs import begin  # noqa: E402


def square(number: int = 0, *, size: int = 4, hole: bool = True) -> Grid:
    """A square of size x size quadrilaterals with a hole, pressure on cells and temperature on points."""
    axis = np.linspace(0.0, 1.0 + 0.1 * number, size + 1)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    points = np.stack([x, y, 0 * x], axis=-1).reshape(-1, 3)
    number_of = np.arange((size + 1) ** 2).reshape(size + 1, size + 1)
    quads = np.stack(
        [number_of[:-1, :-1], number_of[1:, :-1], number_of[1:, 1:], number_of[:-1, 1:]], axis=-1
    )
    keep = np.ones((size, size), dtype=bool)
    if hole:
        keep[1:-1, 1:-1] = False
    cells = quads[keep]
    middle = points[cells].mean(axis=1)
    pressure = middle[:, 0] * (1 + number)
    velocity = np.stack([middle[:, 1], -middle[:, 0], 0 * middle[:, 0]], axis=1)
    return Grid(
        points,
        (Cells("quad", cells),),
        {"T": points[:, 1] * (2 + number)},
        {"p": pressure, "U": velocity},
    )


def write_cases(folder: Path, count: int = 5, suffix: str = ".vtp", **changes: Any) -> Path:
    folder.mkdir()
    for number in range(count):
        write_grid(folder / f"c{number}{suffix}", square(number, **changes))
    (folder / "parameters.json").write_text(json.dumps({f"c{n}": {"speed": 1.0 + n} for n in range(count)}))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_cases(tmp_path / "runs")


P = Choices(targets=("p",))


def test_cells_become_points_with_their_areas_fields_and_parameters(runs: Path, tmp_path: Path) -> None:
    dataset, _ = make_own_dataset(runs, tmp_path / "mine", choices=Choices(targets=("p", "U")))
    assert dataset.targets == ("p", "U_x", "U_y") and dataset.fields == {"p": (0,), "U": (1, 2)}
    assert len(dataset.names("train")) == 4 and len(dataset.names("test")) == 1
    sample = dataset.sample("case-c2")
    assert len(sample.points) == 12 and sample.areas.sum().item() == pytest.approx(0.75 * 1.2**2, rel=1e-6)
    assert torch.allclose(sample.target[:, 0], 3 * sample.points[:, 0])
    assert torch.allclose(sample.target[:, 1], sample.points[:, 1])
    assert not sample.points[:, 2].any() and sample.features[0, -1] == 3.0  # speed
    # The middles lie from 0.125 of the smallest case to 0.875 of the largest; the margin is 5 %.
    assert dataset.low[0] == pytest.approx(0.125 - 0.05 * (0.875 * 1.4 - 0.125))
    assert dataset.low[2] == dataset.high[2] == 0.0


def test_distance_and_direction_to_the_hole_are_exact(runs: Path, tmp_path: Path) -> None:
    dataset, _ = make_own_dataset(runs, tmp_path / "mine", choices=P)
    assert dataset.layout is not None and dataset.layout.wall == "inner"
    sample = dataset.sample("case-c0")
    # The hole of the first case is the square from 0.25 to 0.75.
    outside = (0.25 - sample.points[:, :2]).clamp_min(0) - (sample.points[:, :2] - 0.75).clamp_min(0)
    distance = outside.norm(dim=1)
    assert torch.allclose(sample.features[:, 3] * 0.75, distance, atol=1e-6)  # in units of the extent
    assert torch.allclose(sample.features[:, :2], -outside / distance[:, None], atol=1e-5)


def test_place_size_and_shape_of_the_hole_are_inputs_of_every_point(runs: Path, tmp_path: Path) -> None:
    dataset, _ = make_own_dataset(runs, tmp_path / "mine", choices=P)
    assert dataset.layout is not None and len(dataset.layout.shape) == 2 + 2 + 1 + 4
    sample = dataset.sample("case-c2")
    values = dict(zip(dataset.features, sample.features[3].tolist(), strict=True))
    # The hole is a square around 0.6 with a side of 0.6. In units of the side, the mean of x^2 is 1/4 on two
    # of its sides, and 1/12 on the other two.
    assert values["body_x"] == values["body_y"] == pytest.approx(0.6)
    size = 0.6 * ((1 / 4 + 1 / 12) / 2) ** 0.5
    assert values["body_size_x"] == values["body_size_y"] == pytest.approx(size, abs=1e-5)
    assert all(values[name] == 0 for name in dataset.layout.shape[4:]), "a square is symmetric"
    assert (sample.features == sample.features[:1]).all(0)[5:14].all()


def test_a_triangle_has_the_moments_of_many_points_on_its_sides() -> None:
    points = np.array([[0.0, 0, 0], [4, 0, 0], [0, 3, 0]])
    sides = np.array([[0, 1], [1, 2], [2, 0]])
    values = dict(zip(moment_names("xy"), wall_moments(points, [sides], dimension=2), strict=True))
    along = (np.arange(1000)[:, None, None] + 0.5) / 1000
    x, y = ((1 - along) * points[sides[:, 0]] + along * points[sides[:, 1]])[..., :2].reshape(-1, 2).T
    weight = np.tile(np.array([4, 5, 3]) / 12000, 1000)
    mean = weight @ x, weight @ y
    assert (values["body_x"], values["body_y"]) == pytest.approx(mean, abs=1e-4)
    u, v = x - mean[0], y - mean[1]
    sizes = (weight @ u**2) ** 0.5, (weight @ v**2) ** 0.5
    assert (values["body_size_x"], values["body_size_y"]) == pytest.approx(sizes, abs=1e-4)
    assert values["body_tilt_xy"] == pytest.approx(weight @ (u * v) / (sizes[0] * sizes[1]), abs=1e-4)
    assert values["body_skew_xxx"] == pytest.approx(weight @ u**3 / sizes[0] ** 3, abs=1e-4)
    assert values["body_skew_xxy"] == pytest.approx(
        weight @ (u * u * v) / (sizes[0] ** 2 * sizes[1]), abs=1e-4
    )


def test_smaller_faces_on_the_same_surface_have_the_same_moments() -> None:
    points = np.array([[0.0, 0, 0], [4, 0, 0], [1, 3, 0], [0.5, 0.7, 2]])
    middles = [[1.0, 0, 0], [2, 2, 0], [0.9, 2.7, 0]]  # on each side, not at its middle
    finer = np.array([[0, 4], [4, 1], [1, 5], [5, 2], [2, 6], [6, 0]])
    outline = [np.array([[0, 1], [1, 2], [2, 0]])]
    more = np.concatenate([points, middles])
    assert wall_moments(more, [finer], dimension=2) == pytest.approx(
        wall_moments(points, outline, dimension=2), abs=2e-5
    )
    # A tetrahedron, and the same with two of its faces divided from a place on them, and a third by a line.
    solid = [np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]])]
    inside = 0.2 * points[0] + 0.5 * points[1] + 0.3 * points[3]
    edge = 0.6 * points[2] + 0.4 * points[3]
    more = np.concatenate([points, [inside, edge]])
    finer = np.array([[0, 2, 1], [0, 1, 4], [1, 3, 4], [3, 0, 4], [1, 2, 5], [1, 5, 3], [0, 3, 5], [0, 5, 2]])
    assert wall_moments(more, [finer], dimension=3) == pytest.approx(
        wall_moments(points, solid, dimension=3), abs=2e-5
    )


def test_a_cube_of_squares_has_the_moments_of_the_closed_form() -> None:
    corners = np.array([[x, y, z] for z in (0.0, 1) for y in (0.0, 1) for x in (0.0, 1)])
    squares = np.array([[0, 1, 3, 2], [4, 5, 7, 6], [0, 1, 5, 4], [2, 3, 7, 6], [0, 2, 6, 4], [1, 3, 7, 5]])
    moments = wall_moments(2 * corners - [0, 1, 5], [squares], dimension=3)
    # The mean of x^2 around the middle of a unit cube is 1/4 on two of its faces, and 1/12 on four.
    size = 2 * (1 / 3 * 1 / 4 + 2 / 3 * 1 / 12) ** 0.5
    assert moments == pytest.approx([1, 0, -4, *[size] * 3, *[0] * 13], abs=1e-4)


def test_numbers_that_differ_only_by_rounding_are_not_scaled(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    for number, size in enumerate((0.5, 0.37, 0.7, 0.61)):
        grid = square(0)
        for axis, middle in ((0, 0.6), (1, 0.6 + 0.004 * number)):
            lines = np.array([0.0, middle - size / 2, middle, middle + size / 2, 1.2])
            grid.points[:, axis] = lines[np.rint(4 * grid.points[:, axis]).astype(int)]
        write_grid(runs / f"c{number}.vtp", grid)
    dataset, _ = make_own_dataset(runs, tmp_path / "mine", choices=P, test=0)
    column = dataset.features.index("body_x")
    places = np.array([dataset.sample(name).features[0, column] for name in dataset.names("train")])
    assert 1e-6 < np.ptp(places) < 1e-5, "places are rounded in units of each body"
    config = begin(tmp_path / "run", dataset, resume=False, choices={}).config
    shift, scale = (
        dict(zip(dataset.features, values, strict=True))
        for values in (config.feature_shift, config.feature_scale)
    )
    assert np.abs(places - shift["body_x"]).max() / scale["body_x"] < 1e-4
    # What differs between the bodies has a deviation of 1.
    assert 0.001 < scale["body_y"] < 0.01 and 0.02 < scale["body_size_x"] < 0.1
    assert scale["body_skew_xxx"] == 1.0


def test_fields_on_points_give_a_point_per_point(runs: Path, tmp_path: Path) -> None:
    dataset, _ = make_own_dataset(runs, tmp_path / "mine", choices=Choices(targets=("T",)))
    sample = dataset.sample("case-c1")
    # One of the 25 points is inside the hole and has no cell: it keeps its value and has no area.
    assert len(sample.points) == 25 and sample.areas.sum().item() == pytest.approx(0.75 * 1.1**2, rel=1e-6)
    assert torch.allclose(sample.target[:, 0], 3 * sample.points[:, 1])


def test_a_field_on_points_is_averaged_to_cells_where_another_is_on_cells(runs: Path, tmp_path: Path) -> None:
    dataset, _ = make_own_dataset(runs, tmp_path / "mine", choices=Choices(targets=("p", "T")))
    sample = dataset.sample("case-c0")
    assert torch.allclose(sample.target[:, 1], 2 * sample.points[:, 1])


def test_the_same_command_converts_only_what_is_new_or_has_changed(runs: Path, tmp_path: Path) -> None:
    make_own_dataset(runs, tmp_path / "mine", choices=P)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "mine").glob("case-*")}
    write_grid(runs / "c0.vtp", square(0, size=6))
    done: list[int] = []
    dataset, _ = make_own_dataset(
        runs, tmp_path / "mine", choices=P, progress=lambda finished, _: done.append(finished)
    )
    assert done == [4, 5]
    assert len(dataset.sample("case-c0").points) == 20
    same = {name for name, time in times.items() if (tmp_path / "mine" / name).stat().st_mtime_ns == time}
    assert same == {f"case-c{n}.npz" for n in range(1, 5)}
    assert open_dataset(tmp_path / "mine").names("test") == dataset.names("test")


def refused(folder: Path, output: Path, match: str, **options: Any) -> None:
    """Check that a dataset is refused with a hint, and that nothing was written."""
    options.setdefault("choices", P)
    with pytest.raises(BadInput, match=match) as error:
        make_own_dataset(folder, output, **options)
    assert error.value.hint
    assert not output.exists() or not list(output.iterdir())


def test_a_field_that_some_cases_lack_is_named_with_those_cases(runs: Path, tmp_path: Path) -> None:
    grid = square(3)
    write_grid(runs / "c3.vtp", Grid(grid.points, grid.cells, {}, {"U": grid.cell_fields["U"]}))
    refused(runs, tmp_path / "mine", "1 of 5 cases have no field 'p': c3.*has U")


def test_values_that_are_not_finite_are_counted(runs: Path, tmp_path: Path) -> None:
    grid = square(3)
    grid.cell_fields["p"][:2] = np.nan
    write_grid(runs / "c3.vtp", grid)
    refused(runs, tmp_path / "mine", "2 of 12 values of 'p' in case c3")


def test_two_and_three_dimensions_are_not_mixed(runs: Path, tmp_path: Path) -> None:
    grid = square(3)
    grid.points[:, 2] = grid.points[:, 0]
    write_grid(runs / "c3.vtp", grid)
    refused(runs, tmp_path / "mine", "Case c3 is 3-D")


def test_cases_in_different_planes_are_not_mixed(runs: Path, tmp_path: Path) -> None:
    grid = square(3)
    write_grid(runs / "c3.vtp", Grid(grid.points[:, [0, 2, 1]], grid.cells, {}, grid.cell_fields))
    refused(runs, tmp_path / "mine", "Case c3 is in the plane xz, but case c0 in the plane xy")


def test_surfaces_and_volumes_are_not_mixed(tmp_path: Path) -> None:
    pytest.importorskip("meshio", reason="volumes are written by meshio")
    runs = tmp_path / "runs"
    runs.mkdir()
    grid = square(0)
    grid.points[:, 2] = grid.points[:, 0] ** 2
    write_grid(runs / "a.vtp", grid)
    points = np.vstack([np.zeros(3), np.eye(3), np.ones(3)])
    tetra = Cells("tetra", np.array([[0, 1, 2, 3], [1, 2, 3, 4]]))
    write_grid(runs / "b.vtu", Grid(points, (tetra,), {}, {"p": np.array([1.0, 2.0])}))
    refused(runs, tmp_path / "mine", "case b .* is a volume, but case a is a surface")


def test_counts_that_disagree_with_the_mesh_are_refused(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "a.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 3 1 4\n")
    np.savez(runs / "a.npz", p=np.arange(7.0))
    refused(
        runs, tmp_path / "mine", r"'p' in .*a\.npz has shape \(7,\), but the mesh has 4 points and 4 cells"
    )


def test_a_target_that_is_constant_everywhere_is_refused(runs: Path, tmp_path: Path) -> None:
    for number in range(5):
        grid = square(number)
        grid.cell_fields["p"][:] = 7.0
        write_grid(runs / f"c{number}.vtp", grid)
    refused(runs, tmp_path / "mine", "'p' is constant: it is 7 everywhere")


def test_a_constant_vector_is_refused_with_its_components(runs: Path, tmp_path: Path) -> None:
    for number in range(5):
        grid = square(number)
        grid.cell_fields["U"][:] = (1.0, 0.5, 0.0)
        write_grid(runs / f"c{number}.vtp", grid)
    refused(
        runs, tmp_path / "mine", "'U' is constant: it is 1, 0.5 everywhere", choices=Choices(targets=("U",))
    )


def test_a_vector_that_differs_between_cases_is_not_constant(runs: Path, tmp_path: Path) -> None:
    for number in range(5):
        grid = square(number)
        grid.cell_fields["U"][:] = (1.0 + number, 0.5, 0.0)
        write_grid(runs / f"c{number}.vtp", grid)
    dataset, _ = make_own_dataset(runs, tmp_path / "mine", choices=Choices(targets=("U",)))
    assert dataset.targets == ("U_x", "U_y")


def test_a_parameter_that_a_case_lacks_is_refused(runs: Path, tmp_path: Path) -> None:
    (runs / "parameters.json").write_text(json.dumps({f"c{n}": {"speed": 1.0} for n in range(4)}))
    refused(runs, tmp_path / "mine", "case c4 .* has no parameter 'speed'")


def test_other_components_in_a_case_are_refused(runs: Path, tmp_path: Path) -> None:
    grid = square(3)
    grid.cell_fields["p"] = np.ones((12, 4))
    write_grid(runs / "c3.vtp", grid)
    refused(runs, tmp_path / "mine", "'p' has 4 components in case c3 .* but 1 in the other cases")


def test_an_empty_folder_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    refused(tmp_path / "none", tmp_path / "mine", r"contains no cases\.\n")
    (tmp_path / "none" / "a.vtm").write_text("")
    refused(tmp_path / "none", tmp_path / "mine", "only files of types such as .vtm")
    refused(tmp_path / "absent", tmp_path / "mine", "is not a folder")


def test_whole_numbers_are_targets_only_if_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for number in range(3):
        grid = square(number)
        grid = replace(grid, point_fields={}, cell_fields={"zone": np.arange(12) + number})
        write_grid(tmp_path / "runs" / f"c{number}.vtp", grid)
    message = "no fields of real numbers to predict, only zone"
    refused(tmp_path / "runs", tmp_path / "mine", message, choices=Choices())
    dataset, _ = make_own_dataset(tmp_path / "runs", tmp_path / "mine", choices=Choices(targets=("zone",)))
    assert dataset.sample("case-c2").target[:, 0].tolist() == list(range(2, 14))


def test_a_split_that_leaves_nothing_to_train_with_is_refused(runs: Path, tmp_path: Path) -> None:
    refused(runs, tmp_path / "mine", "--test 5 of 5 cases leaves none", test=5)


def test_folders_train_and_test_decide_the_split(runs: Path, tmp_path: Path) -> None:
    for split, numbers in (("train", (0, 1, 2)), ("test", (3, 4))):
        (tmp_path / "both" / split).mkdir(parents=True)
        for number in numbers:
            shutil.copy(runs / f"c{number}.vtp", tmp_path / "both" / split)
    dataset, _ = make_own_dataset(tmp_path / "both", tmp_path / "mine", choices=P)
    assert dataset.names("test") == ["case-c3", "case-c4"]


def test_a_folder_with_several_files_per_case_asks_for_a_pattern(runs: Path, tmp_path: Path) -> None:
    for number in range(3):
        place = tmp_path / "many" / f"c{number}" / "VTK"
        place.mkdir(parents=True)
        shutil.copy(runs / f"c{number}.vtp", place / "first.vtp")
        shutil.copy(runs / f"c{number}.vtp", place / "last.vtp")
        (place.parent / "parameters.json").write_text(json.dumps({"speed": float(number)}))
    refused(tmp_path / "many", tmp_path / "mine", "contains 2 files that could be the case")
    dataset, _ = make_own_dataset(tmp_path / "many", tmp_path / "mine", choices=P, files="*/VTK/last.vtp")
    assert sorted(dataset.bodies) == ["case-c0", "case-c1", "case-c2"]
    assert dataset.sample("case-c2").features[0, -1] == 2.0


def test_a_grid_that_is_one_cell_thick_is_a_plane(tmp_path: Path) -> None:
    pytest.importorskip("meshio", reason="volumes are written by meshio")
    runs = tmp_path / "runs"
    runs.mkdir()
    for number in range(2):
        flat = square(number)
        points = np.concatenate([flat.points, flat.points + np.array([0, 0, 0.3])])[:, [0, 2, 1]]
        quads = flat.cells[0].corners
        solid = Cells("hexahedron", np.concatenate([quads, quads + len(flat.points)], axis=1))
        fields = {"p": flat.cell_fields["p"], "U": flat.cell_fields["U"][:, [0, 2, 1]]}
        write_grid(runs / f"c{number}.vtu", Grid(points, (solid,), {}, fields))
    dataset, _ = make_own_dataset(runs, tmp_path / "mine")
    assert dataset.layout is not None and dataset.layout.axes == (0, 2) and dataset.layout.measure == 2
    sample = dataset.sample("case-c1")
    assert sample.areas.sum().item() == pytest.approx(0.75 * 1.1**2, rel=1e-5)
    assert torch.allclose(sample.target[:, 1], sample.points[:, 1])
    assert dataset.layout.wall == "inner"
