"""Scores of a run: distances of its images, a record that survives JSON, and readable pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="image files are pillow's")

from pinchpoint.core.errors import BadInput, Missing  # noqa: E402
from pinchpoint.core.units import show_bytes  # noqa: E402
from pinchpoint.systems.radiance import evaluate as scoring  # noqa: E402
from pinchpoint.systems.radiance import orbit as turning  # noqa: E402
from pinchpoint.systems.radiance.data.images import open_images  # noqa: E402
from pinchpoint.systems.radiance.evaluate import (  # noqa: E402
    Evaluation,  # noqa: E402
    evaluate,
    generate_images,
    measure_kernel_distance,
    sample_real,
)  # noqa: E402
from pinchpoint.systems.radiance.metrics.metrics import distances  # noqa: E402
from pinchpoint.systems.radiance.model.superres import enlarge  # noqa: E402
from pinchpoint.systems.radiance.orbit import orbit, writing_bytes  # noqa: E402
from pinchpoint.systems.radiance.train import train  # noqa: E402
from pinchpoint.systems.radiance.training.runs import load_trained  # noqa: E402


class Averages:
    """A stand-in for a feature network: the means of the quarters of an image."""

    name = "efflite0"
    device = torch.device("cpu")

    def __call__(self, images: Any) -> Any:
        return torch.nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("radiance") / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        PIL.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("radiance") / "run"
    settings: dict[str, Any] = {"samples": 4, "batch": 1, "superres": 2, "eval_images": 0}
    settings |= {"critic_width": 4, "sr_width": 4}
    train(data, folder, preset="tiny", steps=1, device="cpu", **settings)
    return folder


def test_weights_are_chosen_with_other_images_than_those_they_are_scored_with(run: Path) -> None:
    value, output = load_trained(run), []

    class RecordingAverages(Averages):
        def __call__(self, images: Any) -> Any:
            output.append(images)
            return super().__call__(images)

    value.model.field.density.bias.data.fill_(1.0)  # something to see
    averages: Any = RecordingAverages()
    measure_kernel_distance(value.model, value.config, torch.rand(4, 12), averages, count=3)
    scored, _ = generate_images(value.model, value.config, 3, seed=value.settings.seed, device="cpu")
    assert (
        output[0].shape == scored.shape and float((output[0] - scored).abs().amax(dim=(1, 2, 3)).min()) > 0.01
    )


def test_an_evaluation_records_the_distances_of_the_images_it_shows(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "open_extractor", lambda **how: Averages())
    result = evaluate(run, data, tmp_path / "scores", images=5, orbits=2, device="cpu")
    value = load_trained(run)
    high, low = generate_images(value.model, value.config, 5, seed=0, device="cpu")
    real = sample_real(open_images(data), 5, seed=0)
    assert low is not None and high.shape == (5, 3, 64, 64) == real.shape
    extract = Averages()
    assert result.distances == pytest.approx(distances(extract(real), extract(high), features="efflite0"))
    smooth = enlarge(low, 2, mode="bicubic")
    assert result.bicubic == pytest.approx(distances(extract(real), extract(smooth), features="efflite0"))
    assert result.projection_residual is not None and result.projection_residual <= 1e-6
    assert set(result.consistency) == {"area_roughness", "hue_spread", "depth_error", "colour_error"}
    assert 0 <= result.silhouette_area["made"] <= 1 and result.silhouette_area["real"] > 0.9, (
        "noise has no white"
    )
    text = (tmp_path / "scores" / "evaluation.json").read_text(encoding="utf-8")
    assert Evaluation.from_json(text) == result and json.loads(text)["kind"] == "radiance-evaluation"
    assert result.files == ("made.png", "real.png", "orbits.png")
    with PIL.open(tmp_path / "scores" / "orbits.png") as sheet:
        assert sheet.size == (8 * 66 - 2, 2 * 66 - 2)
    labels = dict(result.summary())
    assert {"KD-efflite0", "FD-efflite0", "hue coverage", "silhouette area", "2 orbits", "projection"} <= set(
        labels
    )
    assert "bicubically enlarged" in labels["KD-efflite0"]
    again = evaluate(run, data, tmp_path / "scores", images=5, orbits=2, device="cpu", pictures=False)
    assert not again.files and not list((tmp_path / "scores").glob("*.png")), (
        "files of an earlier evaluation are removed"
    )


def test_meaningless_evaluations_are_refused(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "open_extractor", lambda **how: Averages())
    with pytest.raises(BadInput, match="not 1 and 8"):
        evaluate(run, data, tmp_path / "scores", images=1, device="cpu")
    with pytest.raises(BadInput, match="is the folder of a run"):
        evaluate(run, data, run, images=2, device="cpu")
    with pytest.raises(BadInput, match="no run in"):
        evaluate(data, data, tmp_path / "scores", device="cpu")
    with pytest.raises(BadInput, match="has no best checkpoint"):
        evaluate(run, data, tmp_path / "scores", which="best", device="cpu")
    assert not (tmp_path / "scores").exists()


def test_an_inception_file_with_another_hash_is_refused(run: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"no network")
    with pytest.raises(BadInput, match=r"weights\.pth"):
        evaluate(run, data, tmp_path / "scores", inception=tmp_path / "weights.pth", device="cpu")


def test_an_orbit_is_a_movie_and_a_sheet_of_its_views(run: Path, tmp_path: Path) -> None:
    result = orbit(run, tmp_path / "turn.gif", things=2, frames=8, device="cpu")
    assert result.files == (str(tmp_path / "turn.gif"), str(tmp_path / "turn-sheet.png"))
    with PIL.open(result.files[0]) as movie, PIL.open(result.files[1]) as sheet:
        assert movie.size == (2 * 66 - 2, 64) and sheet.size == (8 * 66 - 2, 2 * 66 - 2)
        first = np.array(movie.convert("RGB"), dtype=int)
        output = np.array(sheet.convert("RGB"), dtype=int)
        assert np.abs(first[:, :64] - output[:64, :64]).mean() < 12, (
            "the first frame is the first view, up to the palette"
        )


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("turn.avi", {}, r"cannot be written to .*turn\.avi"),
        ("turn.gif", {"things": 0}, "--things is 0"),
        ("turn.gif", {"frames": 1}, "--frames is 1"),
        ("turn.gif", {"height": 0.7}, "--height is 0.7"),
        ("turn.gif", {"fps": 0}, "--fps is 0"),
        ("none/turn.gif", {}, "Cannot write"),
    ],
)
def test_orbits_that_cannot_be_written_are_refused_before_rendering(
    run: Path, tmp_path: Path, name: str, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(BadInput, match=match):
        orbit(run, tmp_path / name, device="cpu", **options)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def no_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if anything is rendered."""
    monkeypatch.setattr(scoring, "open_extractor", lambda **how: Averages())
    for module in (scoring, turning):
        monkeypatch.setattr(
            module, "whole_images", lambda *args, **how: pytest.fail("something was rendered")
        )


def images_of(folder: Path, *, side: int, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        PIL.new("RGB", (side, side), (number, 0, 0)).save(folder / f"{number:02d}.png")
    return folder


def test_an_output_folder_among_the_images_is_refused_before_anything_is_written(
    run: Path, data: Path, no_rendering: None
) -> None:
    before = sorted(data.rglob("*"))
    with pytest.raises(BadInput, match="is the folder of the images") as excinfo:
        evaluate(run, data, data / ".." / "data", images=2, device="cpu")
    assert "outside of it with -o" in excinfo.value.hint
    with pytest.raises(BadInput, match=r"lies in .*data, the folder of the images"):
        evaluate(run, data, data / "scores", images=2, device="cpu", pictures=False)
    assert sorted(data.rglob("*")) == before


def test_real_images_smaller_than_the_generated_ones_are_refused(
    run: Path, tmp_path: Path, no_rendering: None
) -> None:
    small = images_of(tmp_path / "small", side=32, count=3)
    with pytest.raises(
        BadInput,
        match=r"3 of the 3 images in .*small are smaller than the 64 x 64 pixels that the run generates",
    ) as excinfo:
        evaluate(run, small, tmp_path / "scores", images=2, device="cpu")
    assert (
        excinfo.value.hint == "Give images of at least 64 x 64 pixels." and not (tmp_path / "scores").exists()
    )


def test_a_few_enlarged_images_and_too_few_real_images_are_noted(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "open_extractor", lambda **how: Averages())
    how: dict[str, Any] = {"orbits": 1, "device": "cpu", "pictures": False}
    real = images_of(tmp_path / "real", side=64, count=20)
    PIL.new("RGB", (60, 80)).save(real / "00.png")
    settings = evaluate(run, real, tmp_path / "scores", images=2, **how)
    assert settings.enlarged == 1 and (settings.images, settings.real) == (2, 2)
    assert (
        dict(settings.summary())["note"]
        == f"1 of the images in {real} were smaller, so they were enlarged and are blurred"
    )
    few = evaluate(run, data, tmp_path / "scores", images=7, **how)
    assert (few.images, few.real, few.enlarged) == (7, 6, 0)
    assert (
        dict(few.summary())["note"]
        == "only 6 real images against 7 generated ones: the distances are less certain"
    )
    assert dict(few.summary())["images"].startswith("7 generated against 6 of ")


def test_a_run_trained_on_enlarged_images_can_only_be_compared_with_those_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "open_extractor", lambda **how: Averages())
    small, other = (
        images_of(tmp_path / name, side=16, count=count) for name, count in (("small", 3), ("other", 4))
    )
    how: dict[str, Any] = {"samples": 2, "batch": 1, "critic_width": 4, "eval_images": 0}
    train(small, tmp_path / "run", preset="tiny", steps=1, size=32, device="cpu", **how)
    result = evaluate(
        tmp_path / "run", small, tmp_path / "scores", images=2, orbits=1, device="cpu", pictures=False
    )
    assert result.enlarged == 3 and "note" in dict(result.summary())
    with pytest.raises(BadInput, match="4 of the 4 images"):
        evaluate(tmp_path / "run", other, tmp_path / "scores", images=2, device="cpu")


def test_without_pillow_nothing_is_rendered(
    run: Path, data: Path, tmp_path: Path, no_rendering: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (scoring, turning):
        monkeypatch.setattr(module, "load_weights", lambda *args, **how: pytest.fail("a run was read"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Missing, match=r"pillow.*\n.*pinchpoint\[radiance\]"):
        evaluate(run, data, tmp_path / "scores", images=2, device="cpu")
    with pytest.raises(Missing, match=r"pillow.*\n.*pinchpoint\[radiance\]"):
        orbit(run, tmp_path / "turn.gif", device="cpu")
    assert not list(tmp_path.iterdir())


def test_orbits_that_do_not_fit_in_memory_are_refused_with_their_bytes(
    run: Path, tmp_path: Path, no_rendering: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writing_bytes(3, 2, 10) == 3 * 10 * 10 * (2 * 3 + 2 * 4 * 12), (
        "frames in bytes; two views in fp32, four times"
    )
    assert writing_bytes(1, 1000, 10) == 10 * 10 * (1000 * 4 + 8 * 2 * 12), (
        "with many frames, the peak is the conversion to palette indices"
    )
    need = writing_bytes(4, 2, 200_000)  # enlarged by 2
    monkeypatch.setattr(turning, "free_bytes", lambda: need - 1)
    with pytest.raises(
        BadInput, match=r"2 frames of 4 objects at 200,000 x 200,000 take at least"
    ) as excinfo:
        orbit(run, tmp_path / "turn.gif", size=100_000, frames=2, device="cpu")
    assert show_bytes(need) in excinfo.value.what and "smaller --size" in excinfo.value.hint
    monkeypatch.setattr(turning, "free_bytes", lambda: need)
    with pytest.raises(BadInput, match=r"800,006 pixels wide, but a GIF can have at most 65,535"):
        orbit(run, tmp_path / "turn.gif", size=100_000, frames=2, device="cpu")
    assert not list(tmp_path.iterdir())
