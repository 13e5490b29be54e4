"""Flows over aerofoils by OpenFOAM: meshes, cases, packed flows and what `operator data` reads; no solver."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.data.own.collection import make_own_dataset

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "operator" / "aerofoils"


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def small_mesh():
    shapes = load("shapes")
    return shapes.mesh_of(shapes.Shape(), around=24, layers=9, far=20.0)


def test_without_a_pole_the_body_is_a_circle_and_without_offset_an_ellipse():
    shapes = load("shapes")
    angle = np.linspace(0, 2 * np.pi, 361)
    circle = shapes.Shape(pole=0.0, offset=0.0, rise=0.0).points(np.ones(361), angle)
    assert np.allclose(np.abs(circle - 0.5), 0.5)
    ellipse = shapes.Shape(offset=0.0, rise=0.0, rounding=0.25).points(np.ones(361), angle)
    assert np.ptp(ellipse.real) == pytest.approx(1.0)
    assert np.ptp(ellipse.imag) == pytest.approx((1.25 - 1 / 1.25) / (1.25 + 1 / 1.25))


def test_the_mesh_is_orthogonal_and_its_cells_fill_the_ring():
    shapes = load("shapes")
    mesh = shapes.mesh_of(shapes.Shape(rise=0.1), around=192, layers=100, far=30.0)
    along = np.roll(mesh.corners, -1, axis=1) - np.roll(mesh.corners, 1, axis=1)
    across = mesh.corners[2:] - mesh.corners[:-2]
    cosine = (along[1:-1] * across).sum(-1) / np.linalg.norm(along[1:-1], axis=-1)
    cosine /= np.linalg.norm(across, axis=-1)
    assert np.median(np.abs(cosine)) < 0.01
    assert np.abs(cosine).max() < 0.2  # at the round trailing edge, where the map turns within a few cells

    def area(ring: np.ndarray) -> float:
        x, y = ring.T
        return float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum() / 2)

    _, areas = mesh.centres()
    assert areas.min() > 0
    assert areas.sum() == pytest.approx(area(mesh.corners[-1]) - area(mesh.corners[0]))


def read_list(path: Path) -> list[str]:
    return path.read_text().split("\n(\n", 1)[1].rsplit("\n)", 1)[0].split("\n")


def test_the_case_is_a_closed_mesh_in_the_order_that_openfoam_requires(tmp_path):
    mesh = small_mesh()
    load("foam").write_case(tmp_path, mesh, alpha=5.0, reynolds=200.0, iterations=10)
    folder = tmp_path / "constant" / "polyMesh"
    points = np.array([line.strip("()").split() for line in read_list(folder / "points")], float)
    faces = np.array([re.findall(r"\d+", line)[1:] for line in read_list(folder / "faces")], int)
    owner, neighbour = (np.array(read_list(folder / name), int) for name in ("owner", "neighbour"))
    cells, inner = mesh.layers * mesh.around, len(neighbour)
    corners = points[faces]
    vectors = np.cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1]) / 2
    total = np.zeros((cells, 3))
    np.add.at(total, owner, vectors)
    np.subtract.at(total, neighbour, vectors[:inner])
    assert np.abs(total).max() < 1e-9  # every cell is closed
    middles = np.concatenate([mesh.centres()[0], np.full((cells, 1), 0.5)], axis=1)
    outward = corners.mean(axis=1) - middles[owner]
    assert ((vectors * outward).sum(axis=1) > 0).all()
    assert (owner[:inner] < neighbour).all()
    assert (np.lexsort((neighbour, owner[:inner])) == np.arange(inner)).all()
    patches = re.findall(
        r"(\w+) \{ type (\w+); nFaces (\d+); startFace (\d+)", (folder / "boundary").read_text()
    )
    assert [(name, kind) for name, kind, *_ in patches] == [
        ("body", "wall"),
        ("far", "patch"),
        ("low", "empty"),
        ("high", "empty"),
    ]
    starts = [int(start) for *_, start in patches]
    assert starts == [inner + sum(int(count) for _, _, count, _ in patches[:at]) for at in range(4)]
    assert starts[-1] + int(patches[-1][2]) == len(faces)
    assert "uniform (0.996194698 0.0871557427 0)" in (tmp_path / "0" / "U").read_text()
    assert "nu 0.005;" in (tmp_path / "constant" / "transportProperties").read_text()


def test_a_case_depends_only_on_the_seed_and_its_number():
    draw = load("aerofoils").draw_case
    assert draw(3, seed=0) == draw(3, seed=0)
    assert draw(3, seed=0) != draw(4, seed=0)
    assert draw(3, seed=0) != draw(3, seed=1)


def test_a_case_that_does_not_converge_is_listed_and_not_tried_again(tmp_path, monkeypatch, capsys):
    solver = tmp_path / "bin" / "simpleFoam"
    solver.parent.mkdir()
    solver.write_text("#!/bin/sh\necho ran >> " + str(tmp_path / "calls") + "\necho ExecutionTime = 1 s\n")
    solver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{solver.parent}:/usr/bin:/bin")
    aerofoils = load("aerofoils")
    args = argparse.Namespace(solved=tmp_path / "solved", cases=2, seed=0, jobs=1)
    assert aerofoils.solve(args) == 0
    assert aerofoils.solve(args) == 0
    left_out = json.loads((tmp_path / "solved" / "left-out.json").read_text())
    assert list(left_out) == ["case-0000", "case-0001"]
    assert "did not converge" in left_out["case-0001"]
    assert (tmp_path / "calls").read_text().split() == ["ran", "ran"]
    assert "2 of 2 cases exist" in capsys.readouterr().out


def test_solving_without_openfoam_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    args = argparse.Namespace(solved=tmp_path / "solved", cases=2, seed=0, jobs=1)
    with pytest.raises(BadInput, match="simpleFoam is not installed"):
        load("aerofoils").solve(args)
    assert not (tmp_path / "solved").exists()


def solved_case(path: Path, number: int) -> None:
    """A file as `solve` writes it, with a closed form as its flow: p = x, U = (y, -x)."""
    aerofoils, foam = load("aerofoils"), load("foam")
    case = aerofoils.draw_case(number, seed=0)
    x, y = case.mesh().centres()[0].T
    flow = foam.Flow(x, np.stack([y, -x], axis=1), x[:1], 0.5, 0.1, 100, 1.0)
    aerofoils.save_case(path / f"case-{number:04d}.npz", case, flow)


def test_packed_flows_become_cells_with_the_rounded_fields(tmp_path):
    packing, aerofoils = load("packing"), load("aerofoils")
    for number in (0, 1):
        solved_case(tmp_path, number)
    aerofoils.pack_runs(argparse.Namespace(solved=tmp_path, output=tmp_path / "flows.npz"))
    flows = packing.unpack(tmp_path / "flows.npz")
    assert [flow.name for flow in flows] == ["case-0000", "case-0001"]
    for flow in flows:
        centres, _ = flow.mesh().centres()
        reach = np.linalg.norm(centres - [0.5, 0.0], axis=1)
        assert 1.5 < reach.max() < packing.NEAR
        steps = np.ptp(flow.fields, axis=(1, 2)) / packing.LEVELS
        truth = (centres[:, 0], centres[:, 1], -centres[:, 0])
        for field, expected, step in zip(flow.fields, truth, steps, strict=True):
            assert np.abs(field.ravel() - expected).max() < 0.51 * step
    assert flows[0].about["alpha"] == aerofoils.draw_case(0, seed=0).alpha


def test_files_that_are_not_packed_flows_are_refused(tmp_path):
    unpack = load("packing").unpack
    np.savez(tmp_path / "other.npz", values=np.zeros(3))
    (tmp_path / "text.npz").write_text("hello")
    for name in ("other.npz", "text.npz", "missing.npz"):
        with pytest.raises(BadInput, match="does not contain packed flows"):
            unpack(tmp_path / name)
    with pytest.raises(BadInput, match="contains no solved cases"):
        load("aerofoils").pack_runs(argparse.Namespace(solved=tmp_path, output=tmp_path / "flows.npz"))
    assert not (tmp_path / "flows.npz").exists()


def test_the_reversed_flow_behind_a_cylinder_is_measured_from_its_rear():
    shapes, foam, aerofoils = load("shapes"), load("foam"), load("aerofoils")
    cylinder = shapes.Shape(pole=0.0, offset=0.0, rise=0.0, rounding=0.0)
    mesh = shapes.mesh_of(cylinder, around=64, layers=40, far=20.0)
    x, y = mesh.centres()[0].T
    u = np.where(x > 1, x - 2.5, 1.0)  # reversed up to 1.5 diameters behind the rear
    flow = foam.Flow(0 * x, np.stack([u, 0 * y], axis=1), x[:1], 2.0, 0.0, 1, 1.0)
    assert aerofoils.wake_length(mesh, flow) == pytest.approx(1.5, abs=1e-6)


def test_the_flows_of_the_repository_conserve_mass_and_stop_at_the_body():
    flows = load("packing").unpack(FOLDER / "flows.npz")
    assert len(flows) >= 80
    assert len({flow.about["alpha"] for flow in flows}) == len(flows)
    for flow in flows[::7]:
        mesh = flow.mesh()
        velocity = np.moveaxis(flow.fields[1:], 0, -1)  # (layers, around, 2)
        assert np.linalg.norm(velocity[0], axis=-1).max() < 0.35  # the first cells at a wall without slip
        ring = mesh.corners[-2]
        along = np.roll(ring, -1, axis=0) - ring
        normal = np.stack([along[:, 1], -along[:, 0]], axis=-1)
        flux = ((velocity[-2] + velocity[-1]) / 2 * normal).sum(-1)
        assert abs(flux.sum()) < 0.01 * np.abs(flux).sum()


def test_exported_flows_become_cases_with_an_angle_and_a_reynolds_number(tmp_path):
    packing, aerofoils = load("packing"), load("aerofoils")
    few = packing.unpack(FOLDER / "flows.npz")[:3]
    packing.pack(few, tmp_path / "few.npz")
    aerofoils.export(argparse.Namespace(packed=tmp_path / "few.npz", output=tmp_path / "runs"))
    dataset, _ = make_own_dataset(tmp_path / "runs", tmp_path / "data", test=1)
    assert (len(dataset.names("train")), len(dataset.names("test"))) == (2, 1)
    assert dataset.layout is not None and dataset.layout.wall == "inner"
    assert dataset.targets == ("p", "U_x", "U_y")
    for flow in few:
        sample = dataset.sample(f"case-{flow.name}")
        columns = {name: sample.features[:, at] for at, name in enumerate(dataset.features)}
        assert columns["alpha"].unique().tolist() == pytest.approx([flow.about["alpha"]], rel=1e-5)
        assert columns["Re"].unique().tolist() == pytest.approx([flow.about["reynolds"]], rel=1e-5)
        assert sample.target.T.numpy() == pytest.approx(flow.fields.reshape(3, -1), abs=1e-5)
        assert float(sample.areas.sum()) == pytest.approx(flow.mesh().centres()[1].sum(), rel=1e-4)


def test_the_readme_shows_the_validation_and_the_drag_is_between_published_ones():
    path = ROOT / "benchmarks" / "results" / "operator_aerofoils_validation.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for row in record["cylinder"]:
        published = [figures[f"{row['reynolds']:.0f}"][0] for figures in record["published"].values()]
        assert min(published) < row["drag"] < max(published)
        assert f"| {row['drag']:.3f} | {row['wake']:.2f} |" in readme


def test_the_page_shows_the_errors_of_the_record():
    path = ROOT / "benchmarks" / "results" / "operator_aerofoils_h200.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "systems" / "operator.md").read_text(encoding="utf-8")
    for name, evaluation in record["evaluations"].items():
        assert len(evaluation["bodies"]) == 40
        training = record["trainings"][name]
        errors = [evaluation["fields"][field][key]["median"] for field in ("p", "U") for key in ("l1", "l2")]
        shown = " | ".join(f"{100 * error:.1f} %" for error in errors)
        size, held_back = training["parameters"] / 1e6, f"{100 * training['validation']:.2f} %"
        assert f"| `{record['options'][name]}` | {size:.2f} M | {shown} | {held_back} |" in page
    for name, words in (("base-1e-3", "in L1 (95 % interval "), ("small", "(")):
        overall = record["evaluations"][name]["l1"]
        low, high = (f"{100 * overall[end]:.1f}" for end in ("low", "high"))
        assert f"{100 * overall['median']:.1f} % {words}{low} to {high} %)" in page
    worst = max(body["l1"] for body in record["evaluations"]["base-1e-3"]["bodies"])
    assert f"{100 * worst:.1f} % in the worst case" in page
