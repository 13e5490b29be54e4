"""Scores of a run: the distances are those of what was made, the record survives JSON, the pictures can be looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="image files are pillow's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.workloads.radiance import evaluate as scoring  # noqa: E402
from pinchpoint.workloads.radiance.evaluate import evaluate, made_images, some_real  # noqa: E402
from pinchpoint.workloads.radiance.images import open_images  # noqa: E402
from pinchpoint.workloads.radiance.metrics import distances  # noqa: E402
from pinchpoint.workloads.radiance.orbit import orbit  # noqa: E402
from pinchpoint.workloads.radiance.records import Evaluation  # noqa: E402
from pinchpoint.workloads.radiance.runs import trained  # noqa: E402
from pinchpoint.workloads.radiance.superres import enlarged  # noqa: E402
from pinchpoint.workloads.radiance.train import train  # noqa: E402


class Averages:
    """Stands in for a network of features: means of the image's quarters."""

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
    told = {"samples": 4, "batch": 1, "superres": 2, "critic_width": 4, "sr_width": 4, "eval_images": 0}
    train(data, folder, preset="tiny", steps=1, device="cpu", **told)
    return folder


def test_an_evaluation_holds_the_distances_of_what_it_shows(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "open_extractor", lambda **how: Averages())
    made = evaluate(run, data, tmp_path / "scores", images=5, orbits=2, device="cpu")
    found = trained(run)
    high, low = made_images(found.generator, found.config, 5, seed=0, device="cpu")
    real = some_real(open_images(data), 5, seed=0)
    assert low is not None and high.shape == (5, 3, 64, 64) == real.shape
    extract = Averages()
    assert made.distances == pytest.approx(distances(extract(real), extract(high), features="efflite0"))
    smooth = enlarged(low, 2, mode="bicubic")
    assert made.bicubic == pytest.approx(distances(extract(real), extract(smooth), features="efflite0"))
    assert made.projection_residual is not None and made.projection_residual <= 1e-6
    assert set(made.consistency) == {"area_roughness", "hue_spread", "depth_error", "colour_error"}
    assert 0 <= made.silhouette_area["made"] <= 1 and made.silhouette_area["real"] > 0.9, "noise has no white"
    text = (tmp_path / "scores" / "evaluation.json").read_text(encoding="utf-8")
    assert Evaluation.from_json(text) == made and json.loads(text)["kind"] == "radiance-evaluation"
    assert made.files == ("made.png", "real.png", "orbits.png")
    with PIL.open(tmp_path / "scores" / "orbits.png") as sheet:
        assert sheet.size == (8 * 66 - 2, 2 * 66 - 2)
    labels = dict(made.summary())
    assert {"KD-efflite0", "FD-efflite0", "hue coverage", "silhouette area", "2 orbits", "projection"} <= set(labels)
    assert "enlarged smoothly" in labels["KD-efflite0"]
    again = evaluate(run, data, tmp_path / "scores", images=5, orbits=2, device="cpu", pictures=False)
    assert not again.files and not list((tmp_path / "scores").glob("*.png")), "those of an earlier evaluation are not its own"


def test_evaluations_that_mean_nothing_are_refused(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "open_extractor", lambda **how: Averages())
    with pytest.raises(BadInput, match="1 images and 8 orbits"):
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
    made = orbit(run, tmp_path / "turn.gif", things=2, frames=8, device="cpu")
    assert made.files == (str(tmp_path / "turn.gif"), str(tmp_path / "turn-sheet.png"))
    with PIL.open(made.files[0]) as movie, PIL.open(made.files[1]) as sheet:
        assert movie.size == (2 * 66 - 2, 64) and sheet.size == (8 * 66 - 2, 2 * 66 - 2)
        first = np.array(movie.convert("RGB"), dtype=int)
        shown = np.array(sheet.convert("RGB"), dtype=int)
        assert np.abs(first[:, :64] - shown[:64, :64]).mean() < 12, "the first frame is the first view, but for the palette"


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("turn.avi", {}, r"cannot write .*turn\.avi"),
        ("turn.gif", {"things": 0}, "--things 0"),
        ("turn.gif", {"frames": 1}, "--frames 1"),
        ("turn.gif", {"height": 0.7}, "--height 0.7"),
        ("turn.gif", {"fps": 0}, "--fps 0"),
        ("none/turn.gif", {}, "cannot write"),
    ],
)
def test_orbits_that_cannot_be_written_are_refused_before_they_are_made(
    run: Path, tmp_path: Path, name: str, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(BadInput, match=match):
        orbit(run, tmp_path / name, device="cpu", **options)
    assert not list(tmp_path.iterdir())
