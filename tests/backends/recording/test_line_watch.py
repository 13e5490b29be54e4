"""Which lines ran, and how often a line is on the stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pinchpoint.backends.recording.line_samples import LineSampler
from pinchpoint.backends.recording.line_watch import LineWatch
from pinchpoint.backends.recording.recorder import Recorder

CODE = """import json
def used(x):
    if x:
        return 1
    return 2
def unused():
    return 3
used(1)
"""

PROBE = """
import runpy, sys, builtins
from pinchpoint.backends.recording.line_watch import LineWatch
before = builtins.__import__
watch = LineWatch({sys.argv[1]: [4, 5, 7, 8]})
watch.start()
runpy.run_path(sys.argv[1])
if len(sys.argv) > 2:
    watch.stop_if_slow()
watch.stop()
assert sys.gettrace() is None and builtins.__import__ is before
print([row["ran"] for row in watch.result()])
"""


def run(script: Path, *args: str) -> str:
    # In a process of its own: a debugger of the tests has a trace function too.
    command = [sys.executable, "-c", PROBE, str(script), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.traces_lines
def test_lines_that_ran_are_told_from_those_that_did_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    assert run(script) == "[True, False, False, True]"


@pytest.mark.traces_lines
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from 3.12 on, a watch is never slow")
def test_a_watch_that_ended_early_does_not_know_what_ran_later(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    assert run(script, "early") == "[True, None, None, True]"


def test_a_watch_that_never_began_knows_nothing() -> None:
    assert [row["ran"] for row in LineWatch({"script.py": [1, 2]}).result()] == [None, None]


def test_a_line_has_the_samples_of_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    recorder = Recorder(clock_ns=lambda: next(ticks))
    sampler = LineSampler(recorder)
    turns = iter([False, False, False, True])
    monkeypatch.setattr(sampler, "_over", type("Over", (), {"wait": lambda self, s: next(turns)})())

    def inner() -> None:
        sampler._watch()

    line = sys._getframe().f_lineno + 1
    inner()
    total, counts = sampler.shares()
    assert total == 3
    assert counts[__file__, line] == 3
    assert counts[__file__, line - 3] == 3
    assert sampler.shares(since_ns=3)[0] == 1
