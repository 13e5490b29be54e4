"""The folder of a study: files of an earlier study are removed, files of the user stay."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import which

import pytest

from pinchpoint.studies import study_folder
from pinchpoint.studies.study import study


@pytest.fixture
def write(forecasts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """Run a study in tmp_path with figures of these names; return the names of the files in it afterwards."""

    def writing(*figures: str, **options: object) -> set[str]:
        contents = {name: f"drawing {name}".encode() for name in figures}
        monkeypatch.setattr("pinchpoint.studies.study_folder.gallery.draw_all", lambda study: contents)
        options = {"overwrite": True, **options}
        study("field", sizes="1k:8k:4", on="fake", forecaster=forecasts(), output=tmp_path, **options)
        return {path.name for path in tmp_path.iterdir()}

    return writing


def test_figures_of_an_earlier_study_do_not_linger(write: Callable[..., set[str]]) -> None:
    assert {"peak.png", "theory.png"} <= write("peak.png", "theory.png")
    names = write("peak.png")
    assert "peak.png" in names
    assert "theory.png" not in names


@pytest.mark.parametrize("name", ["theory.png", "ratio.svg", "mine.png"])
def test_a_figure_of_the_user_stays_even_under_a_name_that_studies_use(
    write: Callable[..., set[str]], tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"of the user")
    write("peak.png")
    write("peak.png")
    assert (tmp_path / name).read_bytes() == b"of the user"


def test_a_figure_that_the_user_has_changed_is_kept(write: Callable[..., set[str]], tmp_path: Path) -> None:
    write("peak.png", "theory.png")
    (tmp_path / "theory.png").write_bytes(b"retouched")
    write("peak.png")
    assert (tmp_path / "theory.png").read_bytes() == b"retouched"


def test_a_card_table_is_removed_with_its_study_unless_it_belongs_to_the_user(
    write: Callable[..., set[str]], forecasts, tmp_path: Path
) -> None:
    write()
    without = replace(study("field", sizes="1k:8k:4", on="fake", forecaster=forecasts()), cards=())
    study_folder.write(without, tmp_path)
    assert not (tmp_path / "cards.csv").exists()
    (tmp_path / "cards.csv").write_text("mine", encoding="utf-8")
    study_folder.write(without, tmp_path)
    assert (tmp_path / "cards.csv").read_text(encoding="utf-8") == "mine"


def test_a_list_that_names_files_in_other_folders_removes_nothing(
    write: Callable[..., set[str]], tmp_path: Path
) -> None:
    other = tmp_path.parent / "other.txt"
    other.write_text("other", encoding="utf-8")
    digest = hashlib.sha256(b"other").hexdigest()
    (tmp_path / "files.sha256").write_text(
        f"{digest}  ../other.txt\n{digest}  {other}\nnonsense\n", encoding="utf-8"
    )
    write("peak.png")
    assert other.exists()


@pytest.mark.skipif(which("sha256sum") is None, reason="needs sha256sum")
def test_sha256sum_accepts_the_list_of_files(write: Callable[..., set[str]], tmp_path: Path) -> None:
    names = write("peak.png", "peak.svg")
    done = subprocess.run(
        ["sha256sum", "--check", "files.sha256"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == names - {"files.sha256"}
