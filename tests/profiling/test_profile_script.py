"""`profile` of scripts: they run as `python` runs them, and whatever happens to them is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pinchpoint import profile
from pinchpoint.cli.main import run
from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.core.records import Trace, load

TRAIN = """
import atexit, sys, torch
atexit.register(lambda: print("exit handler ran"))
print(sys.argv[1:], __name__, input())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(100):
        loss = model(torch.ones(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 20:
            raise RuntimeError("wrong at 20")
finally:
    print("finally ran")
"""


def write(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_script_is_stopped_cleanly_after_its_steps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    script, record = write(tmp_path, TRAIN), tmp_path / "trace.json"
    stdin = tmp_path / "input.txt"
    stdin.write_text("from stdin\n")
    with stdin.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        import os

        kept = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            code = run(["profile", script, "--steps", "5", "-o", str(record), "--", "--epochs", "2"])
        finally:
            os.dup2(kept, 0)
            os.close(kept)
    out = capfd.readouterr().out
    assert code == 0
    assert "['--epochs', '2'] __main__ from stdin\nfinally ran\nexit handler ran\n" in out
    assert "stopped after 5 optimizer steps" in out
    assert max(map(len, out.splitlines())) <= 240
    trace = load(record)
    assert isinstance(trace, Trace)
    assert (trace.steps, trace.ended, trace.target) == (5, "stopped", script)
    assert load(trace.save(tmp_path / "again.json")) == trace


def test_exit_handlers_see_the_script_and_its_folder_may_be_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """import atexit, os, sys, tempfile
atexit.register(lambda: print("at exit:", sys.argv[1:], sys.modules["__main__"].MARK))
MARK = 7
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
"""
    assert run(["profile", write(tmp_path, text), "--", "--fast"]) == 0
    assert "at exit: ['--fast'] 7\n" in capfd.readouterr().out


def test_a_script_that_raises_shows_its_traceback_and_keeps_its_steps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    script, record = write(tmp_path, TRAIN.replace("input()", "0")), tmp_path / "trace.json"
    assert run(["profile", script, "-o", str(record)]) == 2
    text = capfd.readouterr()
    assert 'line 14, in <module>\n    raise RuntimeError("wrong at 20")' in text.err
    assert "pinchpoint" not in text.err.partition("Traceback")[2].partition("RuntimeError: wrong")[0]
    assert "exit handler ran" in text.out
    trace = load(record)
    assert isinstance(trace, Trace)
    assert (trace.steps, trace.ended) == (21, "raised")
    assert "RuntimeError: wrong at 20" in trace.error


def test_help_of_a_script_is_shown_and_no_step_is_no_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = write(tmp_path, "import argparse\nargparse.ArgumentParser(usage='mine').parse_args()\n")
    assert run(["profile", script, "--", "--help"]) == 0
    out = capfd.readouterr()
    assert "usage: mine" in out.out
    assert "imported neither torch nor JAX" in out.err
    assert run(["profile", script, "--", "--wrong"]) == 2
    assert "Pass the script's arguments after --." in capfd.readouterr().err


def test_a_script_that_hangs_is_stopped_at_the_time_limit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = (
        f"import time\ntry:\n    time.sleep(1000)\nfinally:\n    open({str(log)!r}, 'w').write('finally')\n"
    )
    trace = profile(write(tmp_path, text), time_limit_s=2.0)
    assert trace.ended == "timed out"
    assert log.read_text() == "finally"


def test_a_script_that_ignores_the_limit_is_killed_and_what_was_learned_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinchpoint.profiling.profile._GRACE_S", 6.0)
    text = (
        "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass\n"
    )
    trace = profile(write(tmp_path, text), time_limit_s=0.3)
    assert trace.ended == "timed out"
    assert "was killed" in trace.notes[-1]


def test_a_module_runs_as_python_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts").mkdir()
    write(tmp_path, "", "parts/__init__.py")
    write(tmp_path, "value = 3\n", "parts/values.py")
    write(tmp_path, "from .values import value\nimport sys\nsys.exit(value)\n", "parts/train.py")
    monkeypatch.chdir(tmp_path)
    trace = profile("-m parts.train")
    assert (trace.ended, trace.exit_code) == ("exited", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "has a syntax error in line 1"),
        ("\0\1\2", "is not Python|null bytes|syntax error"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "was ended by the signal SIGSEGV"),
        ("import os\nos._exit(4)\n", "ended the process with code 4"),
        # A process that the script forks leaves no profile, though it comes to the end of the script.
        ("import os\nif os.fork():\n    os.wait()\n    os._exit(4)\n", "ended the process with code 4"),
    ],
)
def test_what_cannot_be_profiled_is_an_error_that_says_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((TargetFailed, BadInput), match=message):
        profile(write(tmp_path, text))


def test_a_target_that_is_no_script_is_refused() -> None:
    with pytest.raises(BadInput, match="is not a script"):
        profile("field")
    with pytest.raises(BadInput, match="at least 1"):
        profile("train.py", steps=0)


def test_both_peaks_are_shown_side_by_side(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    samples: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pinchpoint.profiling.profile.predict_peak", lambda target, args: samples["forecast"])
    record = tmp_path / "trace.json"
    assert run(["profile", write(tmp_path, "print(1)\n"), "--predict", "-o", str(record)]) == 0
    trace = load(record)
    assert isinstance(trace, Trace)
    assert trace.memory is not None
    assert trace.memory["predicted_allocated_bytes"] == 1000
    assert "allocated    1,000 B" in capfd.readouterr().out


def test_a_script_of_50_000_lines_is_profiled(tmp_path: Path) -> None:
    assert profile(write(tmp_path, "x = 1\n" * 50_000)).ended == "finished"


def test_an_interrupted_script_keeps_what_was_recorded(tmp_path: Path) -> None:
    script = write(
        tmp_path, "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(1000)\n"
    )
    record = tmp_path / "trace.json"
    command = [sys.executable, "-m", "pinchpoint", "profile", script, "-o", str(record)]
    # The script interrupts pinchpoint, which passes it on.
    assert subprocess.run(command, check=False, capture_output=True).returncode == 130
    trace = load(record)
    assert isinstance(trace, Trace)
    assert (trace.ended, trace.exit_code) == ("interrupted", 130)
