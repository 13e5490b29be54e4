"""Processes of torchrun: the first one prints, and a command that cannot share its work refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.processes import is_first_process, refuse_several_processes


@pytest.mark.parametrize(
    ("world", "rank", "first"), [(None, None, True), ("1", "3", True), ("2", "0", True), ("2", "1", False)]
)
def test_only_the_first_of_several_processes_is_first(
    monkeypatch: pytest.MonkeyPatch, world: str | None, rank: str | None, first: bool
) -> None:
    for name, value in (("WORLD_SIZE", world), ("RANK", rank)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert is_first_process() is first


def test_a_number_of_processes_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(BadInput, match="WORLD_SIZE is 'two', which is not a number"):
        refuse_several_processes()


@pytest.mark.parametrize(
    "command",
    [
        ("operator", "train", "data", "-o", "run"),
        ("density", "train", "data", "-o", "run"),
        ("vmc", "train", "H2", "-o", "run"),
        ("vmc", "eval", "run"),
        ("vmc", "scan", "H2", "--bond", "1,2", "-o", "run"),
        ("bench", "operator"),
    ],
    ids=" ".join,
)
def test_commands_of_one_process_refuse_several(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert run(list(command)) == 2
    assert "This command runs in one process, but WORLD_SIZE is 2." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
