"""Files and folders: refused before the work, never half written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinchpoint.core import files
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_folder, json_fault, shown_operation, write_text


def test_an_operation_is_shown_after_its_line() -> None:
    assert shown_operation("/a/train.py:8:mask") == "/a/train.py:8 (mask)"
    assert shown_operation(os.path.abspath("train.py:8:unique")) == "train.py:8 (unique)"
    assert shown_operation("/a/train.py:8") == "/a/train.py:8"


def test_a_folder_that_is_only_checked_leaves_nothing(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").mkdir()
    check_folder(tmp_path / "kept")
    assert (tmp_path / "kept").is_dir()
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(BadInput, match="Cannot create the folder"):
        check_folder(tmp_path / "file" / "run")
    with pytest.raises(BadInput, match=r"Cannot create the folder .*file: it is a file"):
        check_folder(tmp_path / "file")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "it is not JSON (it is not UTF-8 text)"),
        (PermissionError(13, "Permission denied"), "it cannot be read (Permission denied)"),
        (KeyError("steps"), "it lacks 'steps'"),
        (TypeError("f() got an unexpected"), "a value is missing, unknown or of the wrong type"),
        (ValueError("it belongs to another run"), "it belongs to another run"),
    ],
)
def test_the_fault_of_a_json_file_is_told_without_the_words_of_python(error: Exception, fault: str) -> None:
    assert json_fault(error) == fault


@pytest.mark.parametrize("other", ["uses", "removes"])
def test_a_checked_folder_may_be_used_or_removed_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    make = files.make_folder

    def make_beside_another(path: Path) -> Path:
        make(path)
        if other == "uses":
            (path / "config.json").write_text("{}", encoding="utf-8")
        else:
            path.rmdir()
        return path

    monkeypatch.setattr(files, "make_folder", make_beside_another)
    check_folder(tmp_path / "a" / "run")
    assert (tmp_path / "a" / "run" / "config.json").exists() is (other == "uses")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupted_write_leaves_only_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    path = write_text(tmp_path / "result.json", "old")

    def stopped(*paths: str) -> None:
        raise stop

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(type(stop)):
        write_text(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    assert path.read_text(encoding="utf-8") == "old"
