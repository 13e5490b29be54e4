"""Safe fixes are made and judged by runs in turn; a fix that breaks the script is undone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.checking.applying import apply_fixes
from pinchpoint.core.records import Record, Trace

SLOW = """import torch
total = 0.0
for x in torch.rand(50, 4):
    loss = torch.nn.Linear(4, 1)(x).sum()
    loss.backward()
    total += loss
"""
FAST = SLOW.replace("+= loss", "+= loss.detach()")


class Runs:
    """Stands for runs of the script: notes which text ran, and gives each the time of `seconds`."""

    def __init__(self, script: Path, trace: Trace, seconds: Any, broken: str = "") -> None:
        self.script, self.trace, self.seconds, self.broken = script, trace, seconds, broken
        self.texts: list[str] = []

    def __call__(self, sources: dict[str, str] | None) -> Trace:
        text = (sources or {}).get(str(self.script), self.script.read_text())
        self.texts.append(text)
        if self.broken and self.broken in text:
            return replace(self.trace, ended="raised", error="ValueError: broken", exit_code=1)
        return replace(self.trace, step_times={"median_s": self.seconds(text, len(self.texts))})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SLOW)
    path.chmod(0o750)
    return path


@pytest.fixture
def trace(samples: dict[str, Record]) -> Trace:
    sample = samples["trace"]
    assert isinstance(sample, Trace)
    return sample


def test_old_and_new_text_run_in_turn_and_a_clear_gain_is_faster(script: Path, trace: Trace) -> None:
    runs = Runs(script, trace, lambda text, at: (2.0 if text == SLOW else 1.0) * (1 + 0.01 * at))
    gain = apply_fixes([str(script)], runs, pairs=6)
    assert script.read_text() == FAST
    assert script.stat().st_mode & 0o777 == 0o750
    assert runs.texts[:4] == [SLOW, FAST, FAST, SLOW]
    assert (gain.verdict, gain.fixed, gain.files) == ("faster", 1, (str(script),))
    assert gain.speedup == pytest.approx(2.0, rel=0.05)
    assert gain.speedup_low is not None and gain.speedup_low > 1.5
    assert "-    total += loss\n+    total += loss.detach()\n" in gain.diff


def test_noise_around_one_is_no_measurable_change(script: Path, trace: Trace) -> None:
    runs = Runs(script, trace, lambda text, at: 1.0 + 0.1 * (at % 3))
    gain = apply_fixes([str(script)], runs, pairs=6)
    assert gain.verdict == "no measurable change"
    assert gain.speedup_low is not None and gain.speedup_low <= 1.0


def test_few_pairs_prove_nothing_however_large_the_gain(script: Path, trace: Trace) -> None:
    gain = apply_fixes(
        [str(script)], Runs(script, trace, lambda text, at: 2.0 if text == SLOW else 1.0), pairs=5
    )
    assert gain.verdict == "too few pairs"
    assert "at least 6" in gain.reason


def test_a_slow_down_is_called_one(script: Path, trace: Trace) -> None:
    runs = Runs(script, trace, lambda text, at: 1.0 if text == SLOW else 2.0)
    assert apply_fixes([str(script)], runs, pairs=6).verdict == "slower"


def test_a_fix_that_breaks_the_script_is_undone(script: Path, trace: Trace) -> None:
    gain = apply_fixes([str(script)], Runs(script, trace, lambda text, at: 1.0, "detach"), pairs=6)
    assert gain.verdict == "undone"
    assert script.read_text() == SLOW
    assert script.stat().st_mode & 0o777 == 0o750


def test_a_script_that_cannot_run_twice_is_fixed_but_not_compared(script: Path, trace: Trace) -> None:
    gain = apply_fixes([str(script)], Runs(script, trace, lambda text, at: 1.0, "total"), pairs=6)
    assert gain.verdict == "not compared"
    assert script.read_text() == FAST


def test_nothing_is_run_if_nothing_can_be_fixed(script: Path, trace: Trace) -> None:
    script.write_text(FAST)
    runs = Runs(script, trace, lambda text, at: 1.0)
    assert apply_fixes([str(script)], runs, pairs=6).verdict == "not compared"
    assert runs.texts == []
