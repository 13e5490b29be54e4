"""Sheets pixel by pixel, and movies that can be read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="pictures are pillow's")

from tests.systems.radiance.export.known_fields import make_ball  # noqa: E402

from pinchpoint.core.errors import BadInput, Missing  # noqa: E402
from pinchpoint.systems.radiance import orbit  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.training.runs import TrainedRun  # noqa: E402


def test_a_sheet_shows_its_images_row_by_row(tmp_path: Path) -> None:
    values = torch.linspace(-1, 1, 5)[:, None, None, None].expand(5, 3, 4, 4)
    sheet = orbit.tile_images(values, columns=3)
    assert sheet.shape == (4 + orbit.GAP + 4, 3 * 4 + 2 * orbit.GAP, 3)
    expected = [0, 64, 128, 191, 255]
    for number, value in enumerate(expected):
        top, left = (4 + orbit.GAP) * (number // 3), (4 + orbit.GAP) * (number % 3)
        assert (
            abs(int(sheet[top, left, 0]) - value) <= 1
            and (sheet[top : top + 4, left : left + 4] == sheet[top, left]).all()
        )
    assert (sheet[-1, -1] == 255).all(), "white where there is no image"
    path = orbit.save_sheet(tmp_path / "sheet.png", sheet)
    assert np.array_equal(np.array(PIL.open(path)), sheet)
    assert orbit.tile_images(values, columns=5, zoom=3).shape[0] == 12


def test_a_gif_has_every_frame_in_its_colours(tmp_path: Path) -> None:
    frames = [np.full((8, 10, 3), 255, dtype=np.uint8) for _ in range(5)]
    for number, frame in enumerate(frames):
        frame[2:6, 2 * number : 2 * number + 2] = (200, 30, 40)
    path = orbit.save_movie(tmp_path / "turn.gif", frames, fps=10)
    with PIL.open(path) as read:
        assert read.n_frames == 5 and read.info["duration"] == 100
        for number, frame in enumerate(frames):
            read.seek(number)
            assert np.abs(np.array(read.convert("RGB")).astype(int) - frame).max() < 16


def test_unknown_suffixes_and_an_mp4_without_ffmpeg_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match=r"turn\.avi") as excinfo:
        orbit.check_movie(tmp_path / "turn.avi")
    assert ".gif or .mp4" in excinfo.value.hint
    monkeypatch.setattr(orbit.shutil, "which", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    with pytest.raises(Missing, match="ffmpeg") as missing:
        orbit.check_movie(tmp_path / "turn.mp4")
    assert ".gif" in missing.value.hint and "pinchpoint[mp4]" in missing.value.hint
    assert not list(tmp_path.iterdir())


def test_an_orbit_on_a_cpu_has_16_views_and_takes_three_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ball = make_ball()
    trained = TrainedRun(ball, ball.field.config, ball.settings, 5)
    monkeypatch.setattr(orbit, "load_weights", lambda *args, **options: trained)
    record = orbit.orbit("run", tmp_path / "turn.gif", things=1, size=8, device="cpu")
    assert record.frames == 16 and not record.interpolated, "its colours depend on the view"
    with PIL.open(tmp_path / "turn.gif") as read:
        durations = []
        for number in range(read.n_frames):
            read.seek(number)
            durations.append(read.info["duration"])
    assert sum(durations) == pytest.approx(3000, abs=160), "in hundredths of a second per frame"


def test_an_orbit_is_interpolated_unless_it_must_be_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ball = make_ball()
    monkeypatch.setattr(ball.field, "config", FieldConfig.preset("tiny", direction_octaves=-1))
    trained = TrainedRun(ball, ball.field.config, ball.settings, 5)
    monkeypatch.setattr(orbit, "load_weights", lambda *args, **options: trained)
    steps: list[tuple[int, int]] = []
    options: dict[str, Any] = {"things": 2, "frames": 4, "size": 48, "device": "cpu"}
    quick = orbit.orbit("run", tmp_path / "a.gif", progress=lambda *at: steps.append(at), **options)
    exact = orbit.orbit("run", tmp_path / "b.gif", exact=True, **options)
    assert steps == [(done, 8) for done in range(1, 9)]
    assert quick.interpolated and "--exact" in dict(quick.summary())["note"]
    assert not exact.interpolated and "note" not in dict(exact.summary())
    sheets = [np.array(PIL.open(tmp_path / f"{name}-sheet.png")).astype(float) for name in "ab"]
    assert sheets[0].shape == sheets[1].shape == (2 * 48 + orbit.GAP, 4 * 48 + 3 * orbit.GAP, 3)
    assert 0 < np.abs(sheets[0] - sheets[1]).mean() < 2
    with PIL.open(tmp_path / "a.gif") as movie:
        assert movie.size == (2 * 48 + orbit.GAP, 48), "the objects are side by side"
