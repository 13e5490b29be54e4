"""The files of a check: the script and what it imports from beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.checking.script_files import script_files
from pinchpoint.core.targets import find


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)


def names(script: str, folder: Path) -> tuple[list[str], bool]:
    files, uses_framework = script_files(find(script))
    return sorted(str(Path(file).relative_to(folder.resolve())) for file in files), uses_framework


def test_modules_beside_a_script_are_followed_and_others_are_not(tmp_path: Path) -> None:
    write(
        tmp_path, train="import json, model\nfrom data import load", model="import data", data="import torch"
    )
    write(tmp_path, unused="import jax")
    assert names(str(tmp_path / "train.py"), tmp_path) == (["data.py", "model.py", "train.py"], True)


def test_a_module_in_a_package_has_relative_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package" / "parts").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text("from .parts import head\nfrom . import loss")
    (tmp_path / "package" / "loss.py").write_text("import package.train")
    (tmp_path / "package" / "parts" / "head.py").touch()
    monkeypatch.chdir(tmp_path)
    files, uses_framework = names("-m package.train", tmp_path)
    assert files == ["package/__init__.py", "package/loss.py", "package/parts/head.py", "package/train.py"]
    assert not uses_framework
