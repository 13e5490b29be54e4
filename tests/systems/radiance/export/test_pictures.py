"""Views and depth maps of a ball whose distance is known, and codes of grids and interpolations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="pictures are pillow's")

from tests.systems.radiance.export.known_fields import RADIUS, make_ball  # noqa: E402

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.export import pictures  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.rendering.render import Codes  # noqa: E402
from pinchpoint.systems.radiance.training.runs import TrainedRun  # noqa: E402


@pytest.fixture
def _ball(monkeypatch: pytest.MonkeyPatch) -> None:
    ball = make_ball()
    trained = TrainedRun(ball, FieldConfig.preset("tiny"), ball.settings, 5)
    monkeypatch.setattr(pictures, "load_weights", lambda *args, **options: trained)


@pytest.mark.usefixtures("_ball")
def test_views_show_the_object_its_depth_and_the_camera(tmp_path: Path) -> None:
    record = pictures.render_views("run", tmp_path / "views", count=2, height=0.5, depth=True, device="cpu")
    names = ["view-00.png", "view-00-depth.png", "view-01.png", "view-01-depth.png", "views.json"]
    assert [Path(file).name for file in record.files] == names
    assert sorted(names) == sorted(file.name for file in (tmp_path / "views").iterdir())
    image = np.array(PIL.open(tmp_path / "views" / "view-01.png"))
    assert image.shape == (32, 32, 3) and (image[0] == 255).all(), "white around it"
    assert image[12, 16, 0] > 240 > 20 > image[12, 16, 2], "red above"
    assert image[19, 16, 2] > 240 > 20 > image[19, 16, 0], "blue below"
    depth = np.array(PIL.open(tmp_path / "views" / "view-01-depth.png")) * record.depth_unit
    deep = (np.pi / (2 * 400)) ** 0.5  # mean depth that light reaches where density grows by 400 per length
    assert depth[0, 0] == 0 and depth[15:17, 15:17] == pytest.approx(4 - RADIUS + deep, abs=0.01)
    stored = json.loads((tmp_path / "views" / "views.json").read_text(encoding="utf-8"))
    matrix = np.array(stored["views"][1]["camera_to_world"])
    assert stored["views"][1]["u"] == 0.5 and matrix[:3, 3] == pytest.approx([-4, 0, 0], abs=1e-9)
    assert matrix[:3, :3] @ [0, 0, -1] == pytest.approx([1, 0, 0], abs=1e-9), "it looks along its -z"
    assert matrix[:3, 1] == pytest.approx([0, 0, 1], abs=1e-9), "up"


@pytest.mark.usefixtures("_ball")
def test_views_of_an_earlier_call_do_not_remain(tmp_path: Path) -> None:
    pictures.render_views("run", tmp_path / "views", count=2, depth=True, size=8, device="cpu")
    (tmp_path / "views" / "view-of-mine.png").touch()
    pictures.render_views("run", tmp_path / "views", count=1, size=8, device="cpu")
    names = {file.name for file in (tmp_path / "views").iterdir()}
    assert names == {"view-00.png", "views.json", "view-of-mine.png"}


def test_several_views_are_interpolated_unless_they_must_be_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ball = make_ball()
    monkeypatch.setattr(ball.field, "config", FieldConfig.preset("tiny", direction_octaves=-1))
    trained = TrainedRun(ball, ball.field.config, ball.settings, 5)
    monkeypatch.setattr(pictures, "load_weights", lambda *args, **options: trained)
    options: dict[str, Any] = {"size": 64, "device": "cpu"}
    several = pictures.render_views("run", tmp_path / "several", count=2, **options)
    assert several.interpolated and "--exact" in dict(several.summary())["note"]
    stored = json.loads((tmp_path / "several" / "views.json").read_text(encoding="utf-8"))
    assert stored["interpolated"] is True
    few = pictures.render_views("run", tmp_path / "few", count=2, size=16, device="cpu")
    assert not few.interpolated, "it would take longer"
    exact = pictures.render_views("run", tmp_path / "exact", count=2, exact=True, **options)
    one = pictures.render_views("run", tmp_path / "one.png", **options)
    assert not exact.interpolated and not one.interpolated and "note" not in dict(one.summary())
    images = [
        np.array(PIL.open(tmp_path / name)).astype(float)
        for name in ("several/view-00.png", "exact/view-00.png", "one.png")
    ]
    assert np.array_equal(images[1], images[2]) and 0 < np.abs(images[0] - images[1]).mean() < 2


@pytest.mark.usefixtures("_ball")
def test_one_view_is_one_file_and_several_are_refused(tmp_path: Path) -> None:
    record = pictures.render_views("run", tmp_path / "a.png", depth=True, size=16, device="cpu")
    assert record.size == 16 and {file.name for file in tmp_path.iterdir()} == {"a.png", "a-depth.png"}
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"count": 3}, "3 views cannot be written to one file"),
        ({"thing": -1}, "--object is -1"),
        ({"size": 4}, "--size is 4, but it must be at least 8"),
        ({"height": 0.9}, "--height is 0.9"),
    ]
    for options, what in mistakes:
        with pytest.raises(BadInput, match=what):
            pictures.render_views("run", tmp_path / "b.png", **options)
    with pytest.raises(BadInput, match="--views is 1000, but it must be between 1 and 360"):
        pictures.render_views("run", tmp_path / "views", count=1000)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match="the folder of a run"):
        pictures.render_views("run", tmp_path)
    assert not (tmp_path / "b.png").exists()


@pytest.mark.usefixtures("_ball")
def test_a_grid_has_a_row_per_shape_and_an_interpolation_three_rows(tmp_path: Path) -> None:
    grid = pictures.draw_grid("run", tmp_path / "g.png", shapes=2, appearances=3, size=8, device="cpu")
    assert (grid.rows, grid.columns) == (2, 3) and PIL.open(tmp_path / "g.png").size == (28, 18)
    steps = pictures.draw_grid("run", tmp_path / "i.png", interpolate=2, size=8, device="cpu")
    assert (steps.rows, steps.columns, steps.interpolated) == (3, 2, True)
    with pytest.raises(BadInput, match=r"cannot be written to .*g\.gif"):
        pictures.draw_grid("run", tmp_path / "g.gif")
    with pytest.raises(BadInput, match="--interpolate is 1"):
        pictures.draw_grid("run", tmp_path / "g.png", interpolate=1)


def test_codes_of_a_grid_and_of_an_interpolation() -> None:
    codes = Codes(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), torch.randn(3, 4))
    crossed = pictures.cross_codes(codes, 2, 3)
    assert torch.equal(crossed.shape, codes.shape[[0, 0, 0, 1, 1, 1]])
    assert torch.equal(crossed.app, codes.app[[0, 1, 2, 0, 1, 2]])
    between = pictures.steps_between(codes, 5)
    assert len(between.shape) == len(between.app) == 15
    for row, (shape, app) in enumerate([(1, 1), (1, 0), (0, 1)]):
        first, last = 5 * row, 5 * row + 4
        assert torch.allclose(between.shape[first], codes.shape[0], atol=1e-5)
        assert torch.allclose(between.shape[last], codes.shape[shape], atol=1e-5)
        assert torch.allclose(between.app[first], codes.app[0], atol=1e-5)
        assert torch.allclose(between.app[last], codes.app[app], atol=1e-5)
    unit = Codes(*(values / values.norm(dim=1, keepdim=True) for values in codes))
    assert torch.allclose(pictures.steps_between(unit, 5).shape.norm(dim=1), torch.ones(15), atol=1e-5)
