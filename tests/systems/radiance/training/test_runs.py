"""Runs: started with suitable images, refused with others, and loaded for their generator."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="image files are pillow's")

from pinchpoint.core.errors import BadInput, Missing  # noqa: E402
from pinchpoint.systems.radiance.training import runs as runs_module  # noqa: E402
from pinchpoint.systems.radiance.training.runs import begin, fingerprint, read_settings  # noqa: E402

TINY: dict[str, Any] = {"preset": "tiny", "steps": 4}


def folder_of(path: Path, *, side: int, count: int = 3, seed: int = 0) -> Path:
    path.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(count):
        PIL.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path / f"{number}.png")
    return path


def test_the_size_of_the_render_follows_from_the_images(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "data", side=64)
    run, images = begin(tmp_path / "run", data, resume=False, choices=TINY)
    assert run.settings.size == images.size == 64 and run.settings.batch == 4, "a preset has its own batch"
    run, _ = begin(tmp_path / "run", data, resume=False, choices={**TINY, "superres": 2, "batch": 3})
    assert (run.settings.size, run.settings.superres, run.settings.batch) == (32, 2, 3)
    large = folder_of(tmp_path / "large", side=160)
    run, images = begin(tmp_path / "run", large, resume=False, choices={**TINY, "superres": 2, "size": 64})
    assert (run.settings.size, images.size) == (64, 128)
    assert run.config.width == 32 and run.settings.model["width"] == 32
    assert not (tmp_path / "run").exists(), "nothing is written yet"


def test_images_that_do_not_match_the_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Patches of 32 x 32 do not fit into images of 16 x 16"):
        begin(tmp_path / "run", folder_of(tmp_path / "small", side=16), resume=False, choices=TINY)
    with pytest.raises(BadInput, match=r"images are 33 x 33 pixels, which super-resolution x2"):
        begin(
            tmp_path / "run",
            folder_of(tmp_path / "odd", side=33),
            resume=False,
            choices={**TINY, "superres": 2},
        )
    with pytest.raises(BadInput, match="preset 'huge' is unknown"):
        begin(tmp_path / "run", tmp_path / "odd", resume=False, choices={"preset": "huge"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="does not contain any images"):
        begin(tmp_path / "run", tmp_path / "empty", resume=False, choices=TINY)
    PIL.new("RGB", (40, 40)).save(tmp_path / "odd" / "other.png")
    with pytest.raises(BadInput, match="several sizes"):
        begin(tmp_path / "run", tmp_path / "odd", resume=False, choices=TINY)


def test_super_resolution_accepts_only_a_few_enlarged_images(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "data", side=64, count=2)
    with pytest.raises(
        BadInput,
        match=r"2 of the 2 images in .* are smaller than the 128 x 128 pixels that super-resolution x2",
    ) as excinfo:
        begin(tmp_path / "run", data, resume=False, choices={**TINY, "superres": 2, "size": 64})
    assert "smaller --size" in excinfo.value.hint
    run, images = begin(tmp_path / "run", data, resume=False, choices={**TINY, "size": 128})
    assert images.enlarged_count == 2 and images.to("cpu").enlarged_count == 2, (
        "allowed without super-resolution"
    )
    few = folder_of(tmp_path / "few", side=70, count=20)
    PIL.new("RGB", (60, 80)).save(few / "0.png")
    run, images = begin(tmp_path / "run", few, resume=False, choices={**TINY, "superres": 2, "size": 32})
    assert images.enlarged_count == 1 and run.settings.size == 32


def test_a_run_is_resumed_only_with_its_own_images_and_settings(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "data", side=64)
    run, _ = begin(tmp_path / "run", data, resume=False, choices={**TINY, "size": 32})
    run.write()
    again, images = begin(tmp_path / "run", data, resume=True, choices={"memory": "checkpoint", "chunk": 100})
    assert (
        images.size == 32
        and again.settings.memory == "checkpoint"
        and again.settings.data == run.settings.data
    )
    with pytest.raises(BadInput, match=r"r1 \(was 1.0, is 2.0\)"):
        begin(tmp_path / "run", data, resume=True, choices={"r1": 2.0})
    with pytest.raises(BadInput, match=r"ranks \(was 1, is 2\)"):
        begin(tmp_path / "run", data, resume=True, choices={}, ranks=2)
    other = folder_of(tmp_path / "other", side=64, seed=1)
    with pytest.raises(BadInput, match=r"another dataset") as excinfo:
        begin(tmp_path / "run", other, resume=True, choices={})
    assert excinfo.value.hint.startswith("Give the dataset it was started with to resume it")
    with pytest.raises(BadInput, match=r"r1 .*another dataset") as excinfo:
        begin(tmp_path / "run", other, resume=True, choices={"r1": 2.0})
    assert excinfo.value.hint.startswith(
        "Give the dataset it was started with and leave these options out to resume it"
    )
    with pytest.raises(BadInput, match="already holds a run"):
        begin(tmp_path / "run", data, resume=False, choices=TINY)
    with pytest.raises(BadInput, match="no run in"):
        read_settings(tmp_path / "none")


def test_the_fingerprint_depends_on_the_pixels_and_not_on_their_folder(tmp_path: Path) -> None:
    _, one = begin(tmp_path / "run", folder_of(tmp_path / "a", side=32), resume=False, choices=TINY)
    _, same = begin(tmp_path / "run", folder_of(tmp_path / "b", side=32), resume=False, choices=TINY)
    assert fingerprint(one) == fingerprint(same)
    same.pixels[0, 0, 0, 0] ^= 1
    assert fingerprint(one) != fingerprint(same)


def test_a_run_in_the_folder_of_its_images_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "data", side=32)
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "link").symlink_to(data, target_is_directory=True)
    for same in (data, tmp_path / "link", data / ".." / "data"):
        with pytest.raises(BadInput, match="is the folder of the images") as excinfo:
            begin(same, data, resume=False, choices=TINY)
        assert "outside of it with -o" in excinfo.value.hint
    for run_folder in (data / "run", tmp_path / "link" / "a" / "run"):
        with pytest.raises(BadInput, match=r"lies in .*data, the folder of the images") as excinfo:
            begin(run_folder, data, resume=False, choices=TINY)
        assert "outside of it with -o" in excinfo.value.hint
    (tmp_path / "link").unlink()
    assert sorted(tmp_path.rglob("*")) == before
    begin(tmp_path / "data-run", data, resume=False, choices=TINY)


def test_a_run_inside_its_image_folder_can_be_resumed_after_it_is_moved_out(tmp_path: Path) -> None:
    """The run folder is inside the image folder."""
    data = folder_of(tmp_path / "data", side=32)
    run, _ = begin(tmp_path / "run", data, resume=False, choices=TINY)
    run.write()
    samples = folder_of(tmp_path / "run" / "samples", side=32, seed=1)
    shutil.move(tmp_path / "run", data / "run")
    with pytest.raises(BadInput, match="lies in") as excinfo:
        begin(data / "run", data, resume=True, choices={})
    assert excinfo.value.hint.startswith("Move the run out of that folder")
    shutil.move(data / "run", tmp_path / "run")
    again, _ = begin(tmp_path / "run", data, resume=True, choices={})
    assert samples.exists() and again.settings.data == run.settings.data


def test_without_pillow_a_run_is_refused_before_its_images_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder_of(tmp_path / "data", side=32)
    monkeypatch.setattr(runs_module, "open_images", lambda *args, **how: pytest.fail("images were read"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    for resume in (False, True):
        with pytest.raises(Missing, match=r"pillow.*\n.*pinchpoint\[radiance\]"):
            begin(tmp_path / "run", data, resume=resume, choices=TINY)
