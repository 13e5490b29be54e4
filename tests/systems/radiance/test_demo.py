"""The car of the demo: a short fit brings its views closer, and the orbit shows all sides of it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="pictures are pillow's")

from pinchpoint.systems.radiance.data.cars import Pose, draw_car  # noqa: E402
from pinchpoint.systems.radiance.data.sphere_tracing import picture  # noqa: E402
from pinchpoint.systems.radiance.demo import CAR, COLUMNS, FRAMES, draw, fit  # noqa: E402
from pinchpoint.systems.radiance.orbit import views  # noqa: E402
from pinchpoint.systems.radiance.rendering.render import Codes  # noqa: E402


def error_after(steps: int) -> float:
    """Squared error of a view that the fit has not seen."""
    code, side = torch.zeros(1, 1), 24
    image = views(fit(steps=steps), Codes(code, code), 0.1, 0.3, size=side).best[0].permute(1, 2, 0)
    true = picture([draw_car(0, CAR)[0]], [Pose(0.1, 0.3)], size=side).rgb[0]
    return float(((image + 1) / 2 - true).square().mean())


@pytest.mark.slow
def test_the_fit_brings_a_new_view_closer_to_the_car() -> None:
    assert error_after(120) < 0.3 * error_after(2)


def test_the_orbit_is_a_movie_and_a_sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = 32
    monkeypatch.setattr("pinchpoint.systems.radiance.demo.FRAME_SIDE", side)
    result = draw(tmp_path, device="cpu", seed=0, steps=2)
    assert result.path == tmp_path / "radiance.gif" and "2 steps" in result.caption
    with PIL.open(result.path) as movie:
        assert movie.n_frames == FRAMES and movie.size == (3 * side, 3 * side)
    with PIL.open(tmp_path / "radiance.png") as sheet:
        assert sheet.size[0] > COLUMNS // 2 * 3 * side > sheet.size[1]
    assert {path.name for path in tmp_path.iterdir()} == {"radiance.gif", "radiance.png"}
