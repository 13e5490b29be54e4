"""A signal during an import takes effect after it, whatever the module does with exceptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
    sum(range(1000))  # a handler runs between two steps of the interpreter
except BaseException:
    pass
whole = True
"""
WAITS = """
import os, signal
import pinchpoint.cli.main as main
from pinchpoint.console import interrupts

def verb(args):
    if os.environ["AT_WORK"]:
        interrupts.begin_work()
    import swallows
    assert swallows.whole
    while True:
        signal.pause()

main.run = verb
main.main()
"""


@pytest.mark.parametrize(
    ("name", "at_work", "code"),
    [("SIGINT", "", 130), ("SIGTERM", "", 143), ("SIGINT", "yes", -signal.SIGINT), ("SIGTERM", "yes", 143)],
)
def test_an_import_that_swallows_every_exception_does_not_swallow_a_signal(
    tmp_path: Path, name: str, at_work: str, code: int
) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS, encoding="utf-8")
    known = {**os.environ, "PYTHONPATH": str(tmp_path), "SIGNAL": name, "AT_WORK": at_work}
    ran = subprocess.run(
        [sys.executable, "-c", WAITS], env=known, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert "AssertionError" not in ran.stderr
    assert (ran.stderr == "stopped\n") == (not at_work), "before the work it ends at once"


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """Ctrl-C is ignored in a job that a shell started in the background."""
    code = (
        "import os, signal; from pinchpoint.console import interrupts;"
        "signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "interrupts.install({signal.SIGINT: signal.default_int_handler});"
        "os.kill(os.getpid(), signal.SIGINT); print('ran on')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "ran on\n")
