"""Safe fixes are made and compared with the text before; a fix that breaks the script is undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.checking.applying import apply_fixes
from pinchpoint.checking.comparing import Failure, Times

SLOW = """import torch
total = 0.0
for x in torch.rand(50, 4):
    loss = torch.nn.Linear(4, 1)(x).sum()
    loss.backward()
    total += loss
"""
FAST = SLOW.replace("+= loss", "+= loss.detach()")


class Comparison:
    """Stands for the comparison: notes the texts of both versions, and returns this result."""

    def __init__(self, script: Path, result: Times | Failure) -> None:
        self.script, self.result = script, result
        self.texts: list[tuple[str, str]] = []

    def __call__(self, old: dict[str, str]) -> Times | Failure:
        self.texts.append((old[str(self.script)], self.script.read_text()))
        return self.result


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SLOW)
    path.chmod(0o750)
    return path


def test_the_old_text_is_compared_with_the_new_one(script: Path) -> None:
    compare = Comparison(script, Times((2.0,) * 6, (1.0,) * 6, "step", (3, 3), 8))
    gain = apply_fixes([str(script)], compare)
    assert script.read_text() == FAST
    assert script.stat().st_mode & 0o777 == 0o750
    assert compare.texts == [(SLOW, FAST)]
    assert (gain.verdict, gain.fixed, gain.files) == ("faster", 1, (str(script),))
    assert (gain.speedup, gain.block_steps, gain.pairs_of_starts) == (2.0, 8, (3, 3))
    assert "-    total += loss\n+    total += loss.detach()\n" in gain.diff


def test_a_fix_that_breaks_the_script_is_undone(script: Path) -> None:
    gain = apply_fixes([str(script)], Comparison(script, Failure("ValueError: broken", 1)))
    assert gain.verdict == "undone"
    assert "ValueError: broken" in gain.reason
    assert script.read_text() == SLOW
    assert script.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("side", [0, None])
def test_a_script_that_cannot_run_twice_is_fixed_but_not_compared(script: Path, side: int | None) -> None:
    gain = apply_fixes([str(script)], Comparison(script, Failure("It is gone.", side)))
    assert gain.verdict == "not compared"
    assert "It is gone." in gain.reason
    assert script.read_text() == FAST


def test_nothing_is_run_if_nothing_can_be_fixed(script: Path) -> None:
    script.write_text(FAST)
    compare = Comparison(script, Failure(""))
    assert apply_fixes([str(script)], compare).verdict == "not compared"
    assert compare.texts == []
