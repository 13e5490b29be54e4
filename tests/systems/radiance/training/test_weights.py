"""Weights: a file gives the generator of its run, damaged files are refused, and packaged ones are used."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.objective import Generator, whole_images  # noqa: E402
from pinchpoint.systems.radiance.orbit import codes_of, orbit  # noqa: E402
from pinchpoint.systems.radiance.settings import PRESETS, Settings  # noqa: E402
from pinchpoint.systems.radiance.training import weights  # noqa: E402
from pinchpoint.systems.radiance.training.runs import TrainedRun  # noqa: E402
from pinchpoint.systems.radiance.training.weights import export, load_weights  # noqa: E402


def trained_run(preset: str = "tiny", **more: object) -> TrainedRun:
    config = FieldConfig.preset(preset)
    how = {"size": 32, "superres": 2, "bound": 1.0, "data_path": "/home/me/cars", **more}
    settings = Settings(**{**PRESETS[preset], "model": vars(config), **how})
    return TrainedRun(Generator(config, settings).requires_grad_(False), config, settings, 7)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> TrainedRun:
    trained = trained_run()
    monkeypatch.setattr(weights, "load_trained", lambda folder, **options: trained)
    return trained


def test_a_file_gives_the_generator_settings_and_step_of_its_run(run: TrainedRun, tmp_path: Path) -> None:
    exact, half = (export("run", tmp_path / f"{half}.pt", half=half) for half in (False, True))
    stored = load_weights(exact.files[0])
    assert stored.step == 7 and stored.config == run.config and not stored.model.training
    assert stored.settings.superres == 2 and stored.settings.data_path == ""
    assert "/home/me" not in Path(exact.files[1]).read_text(encoding="utf-8")
    codes, pose = codes_of(run.config, 1, seed=0, device="cpu"), torch.full((1,), 0.3)
    images = [whole_images(one.model, codes, pose, pose, size=16).best for one in (run, stored)]
    assert torch.equal(images[0], images[1])
    for name, value in load_weights(half.files[0]).model.state_dict().items():
        torch.testing.assert_close(value, run.model.state_dict()[name], rtol=1e-3, atol=1e-6)
    assert half.bytes < exact.bytes == (tmp_path / "False.pt").stat().st_size
    assert f"{half.parameters:,} in fp16" in dict(half.summary())["weights"]


def test_the_tuned_generator_with_super_resolution_takes_less_than_3_mb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = trained_run("tuned", size=64)
    monkeypatch.setattr(weights, "load_trained", lambda folder, **options: trained)
    assert export("run", tmp_path / "cars.pt").bytes < 3_000_000


@pytest.mark.usefixtures("run")
def test_packaged_stands_where_a_run_does_once_there_are_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL", reason="movies are pillow's")
    monkeypatch.setattr(weights, "PACKAGED", tmp_path / "cars.pt")
    export("run", tmp_path / "cars.pt")
    record = orbit("packaged", tmp_path / "turn.gif", things=1, frames=2, size=8, device="cpu")
    assert record.step == 7 and (tmp_path / "turn.gif").exists()


def test_the_packaged_weights_are_small_and_show_a_car() -> None:
    assert weights.PACKAGED.stat().st_size < 3_000_000
    trained = load_weights("packaged")
    assert trained.settings.superres == 2 and trained.settings.bound == 1.0 and trained.settings.haze > 0
    codes, pose = codes_of(trained.config, 1, seed=3, device="cpu"), torch.full((1,), 0.3)
    cover = whole_images(trained.model, codes, pose, pose, size=12).acc[0]
    assert cover[5:7, 5:7].mean() > 0.9 and cover[0].max() < 0.1, "an object in the middle, on white"


def test_without_packaged_weights_packaged_is_the_name_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PACKAGED", tmp_path / "none.pt")
    with pytest.raises(BadInput, match="There is no run in packaged"):
        load_weights("packaged")


def test_what_holds_no_weights_is_refused(run: TrainedRun, tmp_path: Path) -> None:
    whole = Path(export("run", tmp_path / "whole.pt").files[0]).read_bytes()
    file = tmp_path / "mine.pt"
    for contents in (whole[:1000], b"weights"):
        file.write_bytes(contents)
        with pytest.raises(BadInput, match=r"mine\.pt does not hold weights of a radiance field"):
            load_weights(file)
    with pytest.raises(BadInput, match=r"cannot be written to .*cars\.json"):
        export("run", tmp_path / "cars.json")
