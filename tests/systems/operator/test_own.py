"""A user's own cases from files to predictions: every kind of data, through the commands a user types."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.cli.main import run as run_command  # noqa: E402
from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.operator.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.operator.data.own.collection import Choices, make_own_dataset  # noqa: E402
from pinchpoint.systems.operator.data.own.layout import GENERATOR, Layout  # noqa: E402
from pinchpoint.systems.operator.evaluate import evaluate  # noqa: E402
from pinchpoint.systems.operator.files.formats import read_grid, write_grid  # noqa: E402
from pinchpoint.systems.operator.files.grid import Cells, Grid  # noqa: E402
from pinchpoint.systems.operator.model.graph import graph_of  # noqa: E402
from pinchpoint.systems.operator.predict import predict  # noqa: E402
from pinchpoint.systems.operator.train import train  # noqa: E402
from pinchpoint.systems.operator.training.runs import load_trained  # noqa: E402

MODEL = {"mlp": (8,), "channels": 8, "width": 16, "depth": 1, "heads": 2}
FLAT, SOLID = (4, 4, 1), (4, 4, 4)
# The prediction of earlier_run.zip on `ring(2)`, in every eighth cell.
EARLIER = {
    "p": [-3.3686986, -2.8184128, 2.1423287, 3.1533508],
    "U_x": [-1.1955047, -1.5800952, -2.0834243, -2.8414462],
}


def fit(data: Path, folder: Path, lattice: tuple[int, int, int], steps: int = 2) -> Path:
    train(
        data,
        folder,
        model={**MODEL, "lattice": lattice},
        device="cpu",
        validation=0,
        steps=steps,
    )
    return folder


def ring(number: int, *, around: int = 16) -> Grid:
    """Quadrilaterals around a hole, with a pressure and a velocity on cells."""
    angle = np.linspace(0, 2 * np.pi, around + 1)[:-1]
    radii = (0.5 + 0.05 * number) * np.array([1.0, 1.6, 2.6])
    points = np.stack(
        [np.outer(radii, np.cos(angle)), np.outer(radii, np.sin(angle)), 0 * np.outer(radii, angle)], axis=-1
    )
    index = np.arange(points[..., 0].size).reshape(3, around)
    after = np.roll(index, -1, axis=1)
    cells = np.stack([index[:-1], index[1:], after[1:], after[:-1]], axis=-1).reshape(-1, 4)
    points = points.reshape(-1, 3)
    middle = points[cells].mean(axis=1)
    velocity = np.stack([-middle[:, 1], middle[:, 0], 0 * middle[:, 0]], axis=1)
    return Grid(points, (Cells("quad", cells),), {}, {"p": middle[:, 0] * (1 + number), "U": velocity})


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cases, a dataset and a run on it."""
    folder = tmp_path_factory.mktemp("rings")
    (folder / "runs").mkdir()
    with (folder / "runs" / "parameters.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["case", "speed"], *([f"r{n}", 1.0 + n] for n in range(6))])
    for number in range(6):
        write_grid(folder / "runs" / f"r{number}.vtp", ring(number))
    make_own_dataset(folder / "runs", folder / "mine")
    fit(folder / "mine", folder / "run", FLAT)
    return folder


def test_the_commands_of_the_page_work_and_show_box_normalisation_and_radii(
    rings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, data, run = str(rings / "runs"), str(tmp_path / "mine"), str(tmp_path / "run")
    assert run_command(["operator", "data", "--from", source, "-o", data, "--targets", "p,U"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "5 for training, 1 for testing",
        "2-D (x, y)",
        "target U_y",
        "box ",
        "lattice ",
        "radii ",
        "speed",
    ):
        assert text in shown
    model = [f"--set={name}={value}" for name, value in (("mlp", 8), ("channels", 8), ("lattice", "4,4,1"))]
    training = ["operator", "train", data, "-o", run, "--steps", "2", "--device", "cpu", *model]
    assert run_command(training) == 0
    assert run_command(["operator", "eval", run, data, "-o", str(tmp_path / "errors")]) == 0
    shown = capsys.readouterr().out
    assert "of p" in shown and "of U" in shown
    mesh, output = str(rings / "runs" / "r2.vtp"), str(tmp_path / "out.vtp")
    assert run_command(["operator", "predict", run, mesh, "-o", output, "--parameter", "speed=3"]) == 0
    assert "p and U on 32 cells" in capsys.readouterr().out


def test_errors_of_every_field_and_pictures_are_written(rings: Path, tmp_path: Path) -> None:
    result = evaluate(rings / "run", rings / "mine", tmp_path / "errors", device="cpu", split="train")
    assert set(result.fields) == {"p", "U"}
    name = result.bodies[0]["name"]
    assert name == "r0", "the user's own name"
    sample, trained = open_dataset(rings / "mine").sample(f"case-{name}"), load_trained(rings / "run")
    graph = graph_of(sample.points, trained.config, areas=sample.areas, features=sample.features)
    with torch.no_grad():
        prediction = trained.model(sample.points, sample.features, sample.areas, graph)
    off = sample.areas @ (prediction - sample.target).abs()
    size = sample.areas @ sample.target.abs()
    assert result.bodies[0]["U l1"] == pytest.approx(float(off[1:].sum() / size[1:].sum()), rel=1e-4)
    each = [result.bodies[0]["p l1"], result.bodies[0]["U l1"]]
    assert result.bodies[0]["l1"] == pytest.approx(sum(each) / 2)
    for picture in ("best.png", "median.png", "worst.png"):
        assert (tmp_path / "errors" / picture).stat().st_size > 10_000


def test_a_prediction_has_all_fields_under_their_own_names(rings: Path, tmp_path: Path) -> None:
    grid = ring(2)
    write_grid(tmp_path / "new.vtp", Grid(grid.points, grid.cells))
    result = predict(
        rings / "run", tmp_path / "new.vtp", tmp_path / "out.vtp", parameters={"speed": 3.0}, device="cpu"
    )
    written = read_grid(tmp_path / "out.vtp")
    assert set(written.cell_fields) == {"p", "U"} and written.cell_fields["U"].shape == (32, 3)
    sample, trained = open_dataset(rings / "mine").sample("case-r2"), load_trained(rings / "run")
    graph = graph_of(sample.points, trained.config, areas=sample.areas, features=sample.features)
    with torch.no_grad():
        truth = trained.model(sample.points, sample.features, sample.areas, graph).numpy()
    assert np.allclose(written.cell_fields["p"], truth[:, 0], atol=1e-5)
    assert np.allclose(written.cell_fields["U"][:, :2], truth[:, 1:], atol=1e-5)
    assert result.ranges["p"] == pytest.approx((truth[:, 0].min(), truth[:, 0].max()), abs=1e-5)
    assert not result.notes


def test_a_run_of_an_earlier_version_predicts_what_it_predicted_then(tmp_path: Path) -> None:
    # Trained for two steps on rings by the version before place, size and shape of bodies were inputs.
    with zipfile.ZipFile(Path(__file__).with_name("earlier_run.zip")) as archive:
        archive.extractall(tmp_path / "run")
    write_grid(tmp_path / "new.vtp", ring(2))
    options: dict[str, Any] = {"device": "cpu", "parameters": {"speed": 3.0}}
    result = predict(tmp_path / "run", tmp_path / "new.vtp", tmp_path / "out.vtp", **options)
    fields = read_grid(tmp_path / "out.vtp").cell_fields
    assert np.allclose(fields["p"][::8], EARLIER["p"], atol=1e-4) and not result.notes
    assert np.allclose(fields["U"][::8, 0], EARLIER["U_x"], atol=1e-4)


def test_bodies_unlike_those_of_training_are_a_note(rings: Path, tmp_path: Path) -> None:
    grid = ring(2)
    write_grid(tmp_path / "new.vtp", Grid(grid.points * np.array([1.0, 0.6, 1.0]), grid.cells))
    options: dict[str, Any] = {"device": "cpu", "parameters": {"speed": 3.0}}
    result = predict(rings / "run", tmp_path / "new.vtp", tmp_path / "out.vtp", **options)
    assert len(result.notes) == 1 and "unlike those of training" in result.notes[0]
    # A circle of radius 0.6 in y and 0.36 after it was flattened; the circles of training are larger.
    assert "body_size_y is 0.2" in result.notes[0] and "body_size_x" not in result.notes[0]


def test_a_parameter_beyond_training_is_a_note_and_a_missing_one_an_error(
    rings: Path, tmp_path: Path
) -> None:
    mesh = tmp_path / "new.vtp"
    write_grid(mesh, ring(2))
    with pytest.raises(BadInput, match="'speed' is missing"):
        predict(rings / "run", mesh, tmp_path / "out.vtp", device="cpu")
    with pytest.raises(BadInput, match="no parameter 'alpha'; it has speed"):
        predict(rings / "run", mesh, tmp_path / "out.vtp", device="cpu", parameters={"alpha": 1.0})
    (tmp_path / "new.json").write_text(json.dumps({"speed": 99}))
    result = predict(rings / "run", mesh, tmp_path / "out.vtp", device="cpu")
    assert result.notes == ("speed is 99, but training covered 1 to 6: this is a guess",)


def test_a_mesh_outside_the_box_is_scaled_on_request_with_a_note(rings: Path, tmp_path: Path) -> None:
    grid = ring(2)
    write_grid(tmp_path / "new.vtp", Grid(grid.points * 1000 + 50.0 * np.array([1, 0, 0]), grid.cells))
    options: dict[str, Any] = {"device": "cpu", "parameters": {"speed": 3.0}}
    with pytest.raises(BadInput, match="not inside the box") as error:
        predict(rings / "run", tmp_path / "new.vtp", tmp_path / "out.vtp", **options)
    assert "--fit" in (error.value.hint or "")
    result = predict(rings / "run", tmp_path / "new.vtp", tmp_path / "out.vtp", fit=True, **options)
    assert "was scaled by 0.00" in result.notes[0]
    assert np.allclose(
        read_grid(tmp_path / "out.vtp").points[:, 0].max(), grid.points[:, 0].max() * 1000 + 50
    )


def test_options_of_the_other_kind_of_data_are_refused(rings: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--yaw and --clearance belong to runs on cars"):
        predict(rings / "run", rings / "runs" / "r1.vtp", tmp_path / "out.vtp", yaw=1.0)
    assert run_command(["operator", "data", "-o", str(tmp_path / "d"), "--targets", "p"]) == 2
    source = str(rings / "runs")
    assert (
        run_command(["operator", "data", "-o", str(tmp_path / "d"), "--from", source, "--panels", "9"]) == 2
    )
    assert not (tmp_path / "d").exists()


def test_other_targets_than_in_training_are_refused_by_eval(rings: Path, tmp_path: Path) -> None:
    make_own_dataset(rings / "runs", tmp_path / "other", choices=Choices(targets=("p",)))
    with pytest.raises(BadInput, match="differs from the data of the run in: targets"):
        evaluate(rings / "run", tmp_path / "other", tmp_path / "errors", device="cpu")


def test_eval_says_whether_the_run_or_the_data_are_of_an_earlier_version(rings: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(Path(__file__).with_name("earlier_run.zip")) as archive:
        archive.extractall(tmp_path / "run")
    with pytest.raises(BadInput, match="of the run in: moments") as error:
        evaluate(tmp_path / "run", rings / "mine", tmp_path / "errors", device="cpu")
    assert "train it again" in error.value.hint
    index = json.loads((rings / "mine" / "index.json").read_text())
    index["layout"]["moments"] = False
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match="of the run in: moments") as error:
        evaluate(rings / "run", tmp_path / "older", tmp_path / "errors", device="cpu")
    assert "make it again" in error.value.hint and "train" not in error.value.hint


@pytest.mark.parametrize("stored", [{}, {"generator": 2}])
def test_a_run_with_shapes_of_an_earlier_version_is_told_apart(
    rings: Path, tmp_path: Path, stored: dict[str, int]
) -> None:
    shutil.copytree(rings / "run", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    layout = config["layout"]
    assert layout.pop("generator") == GENERATOR and layout["moments"]
    layout |= stored
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    options: dict[str, Any] = {"device": "cpu", "parameters": {"speed": 2.0}}
    result = predict(tmp_path / "run", rings / "runs" / "r1.vtp", tmp_path / "out.vtp", **options)
    assert "in another way: make the dataset again" in result.notes[0]
    with pytest.raises(BadInput, match="the run was made with an earlier version") as error:
        evaluate(tmp_path / "run", rings / "mine", tmp_path / "errors", device="cpu")
    assert error.value.hint == "Train the run again."
    # A run whose features have no shapes is the same with every version.
    assert Layout.from_dict({**layout, "moments": False}).has_shapes_of(GENERATOR)


def ball(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and triangles of an octahedron with its faces divided in four."""
    points = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], dtype=float)
    faces = [[0, 2, 4], [2, 1, 4], [1, 3, 4], [3, 0, 4], [2, 0, 5], [1, 2, 5], [3, 1, 5], [0, 3, 5]]
    corners = points[np.array(faces)]
    middle = (corners + np.roll(corners, -1, axis=1)) / 2
    parts = [
        np.stack([corners[:, 0], middle[:, 0], middle[:, 2]], axis=1),
        np.stack([middle[:, 0], corners[:, 1], middle[:, 1]], axis=1),
        np.stack([middle[:, 2], middle[:, 1], corners[:, 2]], axis=1),
        middle,
    ]
    every = np.concatenate(parts)
    every /= np.linalg.norm(every, axis=2, keepdims=True)
    vertices, index = np.unique(every.reshape(-1, 3).round(12), axis=0, return_inverse=True)
    return vertices * (1 + 0.1 * number), index.reshape(-1, 3)


def write_obj(path: Path, vertices: np.ndarray, faces: np.ndarray) -> None:
    rows = ["v {} {} {}".format(*v) for v in vertices] + ["f {} {} {}".format(*(f + 1)) for f in faces]
    path.write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("table", ["npz", "csv", "h5"])
def test_surfaces_with_a_table_of_fields_have_outward_normals(tmp_path: Path, table: str) -> None:
    runs = tmp_path / "runs"
    for number in range(3):
        case = runs / f"ball{number}"
        case.mkdir(parents=True)
        vertices, faces = ball(number)
        write_obj(case / "mesh.obj", vertices, faces[:, ::-1] if number == 1 else faces)
        centres = vertices[faces].mean(axis=1)
        pressure, shear = centres[:, 0] * number + 1, centres * 2
        if table == "npz":
            np.savez(case / "fields.npz", p=pressure, wallShearStress=shear)
        elif table == "csv":
            with (case / "fields.csv").open("w", newline="") as file:
                rows = np.column_stack([pressure, shear]).tolist()
                head = ["p", "wallShearStress_x", "wallShearStress_y", "wallShearStress_z"]
                csv.writer(file).writerows([head, *rows])
        else:
            h5py = pytest.importorskip("h5py", reason="HDF5 files are read by h5py")
            with h5py.File(case / "fields.h5", "w") as file:
                file["p"], file["wallShearStress"] = pressure, shear
        (case / "parameters.json").write_text(json.dumps({"U": 1.0 + number}))
    dataset, _ = make_own_dataset(runs, tmp_path / "mine")
    assert dataset.layout is not None and dataset.layout.normals and dataset.layout.dimension == 3
    assert dataset.features == ("normal_x", "normal_y", "normal_z", "U")
    for number in range(3):
        sample = dataset.sample(f"case-ball{number}")
        outward = torch.nn.functional.normalize(sample.points, dim=1)
        assert (sample.features[:, :3] * outward).sum(dim=1).min() > 0.9
        assert torch.allclose(sample.target[:, 1:], 2 * sample.points, atol=1e-6)
    if table == "npz":
        fit(tmp_path / "mine", tmp_path / "run", SOLID)
        assert evaluate(tmp_path / "run", tmp_path / "mine", tmp_path / "errors", device="cpu").fields
        predict(tmp_path / "run", runs / "ball1" / "mesh.obj", tmp_path / "out.vtp", device="cpu")
        assert set(read_grid(tmp_path / "out.vtp").cell_fields) == {"p", "wallShearStress"}


def block(number: int) -> Grid:
    """A cube of 27 hexahedra, with a temperature on its points."""
    axis = np.linspace(0, 1 + 0.1 * number, 4)
    points = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    i = np.arange(64).reshape(4, 4, 4)
    low, high = i[:-1, :-1, :-1].ravel(), [0, 16, 20, 4, 1, 17, 21, 5]
    return Grid(points, (Cells("hexahedron", low[:, None] + high),), {"T": points.sum(axis=1)})


def test_volumes_are_learned_at_their_points_and_written_as_vtu(tmp_path: Path) -> None:
    pytest.importorskip("meshio", reason="volumes are read and written by meshio")
    (tmp_path / "runs").mkdir()
    for number in range(3):
        write_grid(tmp_path / "runs" / f"b{number}.vtu", block(number))
    dataset, _ = make_own_dataset(tmp_path / "runs", tmp_path / "mine")
    assert dataset.layout is not None and dataset.layout.measure == 3 and dataset.layout.wall == "all"
    sample = dataset.sample("case-b2")
    assert sample.areas.sum().item() == pytest.approx(1.2**3, rel=1e-5)
    to_side = torch.minimum(sample.points, 1.2 - sample.points).amin(dim=1)
    assert torch.allclose(sample.features[:, 3] * 1.2, to_side, atol=1e-5)
    fit(tmp_path / "mine", tmp_path / "run", SOLID)
    evaluate(tmp_path / "run", tmp_path / "mine", tmp_path / "errors", device="cpu")
    with pytest.raises(BadInput, match="cannot hold cells that have a volume"):
        predict(tmp_path / "run", tmp_path / "runs" / "b1.vtu", tmp_path / "out.vtp", device="cpu")
    predict(tmp_path / "run", tmp_path / "runs" / "b1.vtu", tmp_path / "out.vtu", device="cpu")
    assert read_grid(tmp_path / "out.vtu").point_fields["T"].shape == (64,)


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_points_without_cells_are_learned_too(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "runs").mkdir()
    for number in range(3):
        points = np.random.default_rng(number).random((60, 2))
        path = tmp_path / "runs" / f"cloud{number}.{suffix}"
        if suffix == "npz":
            np.savez(path, points=points, u=points[:, 0] ** 2, speed=np.float64(number))
        else:
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([["x", "y", "u"], *([*p, p[0] ** 2] for p in points.tolist())])
    parameters = ("speed",) if suffix == "npz" else None
    choices = Choices(targets=("u",), parameters=parameters)
    dataset, _ = make_own_dataset(tmp_path / "runs", tmp_path / "mine", choices=choices)
    assert dataset.features == (("speed",) if suffix == "npz" else ("one",))
    assert dataset.layout is not None and dataset.layout.measure == 2
    fit(tmp_path / "mine", tmp_path / "run", FLAT)
    evaluate(tmp_path / "run", tmp_path / "mine", tmp_path / "errors", device="cpu")
    result = predict(
        tmp_path / "run", tmp_path / "runs" / f"cloud0.{suffix}", tmp_path / "out.vtp", device="cpu", fit=True
    )
    assert result.count == 60 and len(read_grid(tmp_path / "out.vtp").point_fields["u"]) == 60


def test_the_flows_of_the_page_follow_their_aerofoil_and_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("meshio", reason="the example writes its files with meshio")
    example = Path(__file__).parents[3] / "examples" / "operator_flows.py"
    spec = importlib.util.spec_from_file_location("operator_flows", example)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    centre, alpha = complex(-0.1, 0.08), 0.05
    angles = np.linspace(0.3, 6.0, 400)
    places, velocity = module.flow(
        centre + abs(1 - centre) * np.exp(1j * angles), centre, abs(1 - centre), alpha
    )
    along = np.gradient(places)
    # On the aerofoil itself the velocity u - iv has no component across its outline.
    across = (np.conj(velocity) * np.conj(along)).imag / np.abs(along)
    assert np.abs(across[5:-5]).max() < 0.01 * np.abs(velocity).max()
    options = ["--cases", "3", "--around", "16", "--outward", "4"]
    monkeypatch.setattr("sys.argv", ["operator_flows.py", str(tmp_path / "runs"), *options])
    module.main()
    dataset, _ = make_own_dataset(tmp_path / "runs", tmp_path / "mine")
    assert dataset.layout is not None and dataset.layout.wall == "inner"
    assert dataset.layout.parameters == ("alpha",) and set(dataset.fields) == {"p", "U"}
