"""The two README files say the same, and what they show is what the tool prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pinchpoint.cli.main import run

ROOT = Path(__file__).parents[2]


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_both_readme_files_have_the_same_command_blocks() -> None:
    assert _blocks(_read("README.zh.md")) == _blocks(_read("README.md"))


def test_both_readme_files_have_the_same_sections_links_and_figures() -> None:
    english, chinese = _read("README.md"), _read("README.zh.md")
    assert re.findall(r"^#+ ", chinese, re.MULTILINE) == re.findall(r"^#+ ", english, re.MULTILINE)
    for pattern in (r"\]\(([^)\s]+)\)", r"\d[\d.,]*\d"):
        text = english.replace("[README.zh.md](README.zh.md)", "")
        translation = chinese.replace("[README.md](README.md)", "")
        assert sorted(re.findall(pattern, translation)) == sorted(re.findall(pattern, text))


@pytest.mark.usefixtures("quick_workers")
def test_the_first_command_prints_what_the_readme_shows(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    block = next(block for block in _blocks(_read("README.md")) if block.startswith("$ pinchpoint predict"))
    command, *lines = block.splitlines()
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setenv("COLUMNS", "80")
    assert run(shlex.split(command)[2:]) == 1  # it does not fit
    output = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line not in output] == []
