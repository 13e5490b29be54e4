"""A command that is stopped by SIGTERM or SIGKILL leaves no process running and no file behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinchpoint.core.errors import TargetFailed, TimedOut
from pinchpoint.forecasting.forecaster import Forecaster

pytest.importorskip("torch", reason="the targets are torch's")
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found by /proc"
)

SCRIPT = """
import time
import torch
model = torch.nn.Linear(4, 4).cuda()
open("made.txt", "w").write("x")
while True:
    time.sleep(0.1)
"""
FACTORY = """
import os, time
import torch
def step_of(size, device):
    if device == "cpu":  # the measured point; the forecast before it must not hang
        os.fork()
        time.sleep(600)
    return lambda: torch.ones(size, 4, device=device).sum()
"""
COMMANDS = {
    "predict": ("predict", "{path}"),
    "study": ("study", "{path}:step_of", "--sizes", "8,16,32", "--on", "cpu"),
}
MODULES = {"predict": "pinchpoint.forecasting.worker_process.worker", "study": "pinchpoint.studies.worker"}
# For predict: the worker, the fork of the request, and in it the fork of the script.
WORKERS = {"predict": 3, "study": 2}


class RunningCommand:
    """A command that runs in a temporary folder; a mark in their environment identifies its processes."""

    def __init__(self, verb: str, folder: Path) -> None:
        target = folder / "hang.py"
        target.write_text(SCRIPT if verb == "predict" else FACTORY, encoding="utf-8")
        self.temp = folder / "temp"
        self.temp.mkdir()
        self.mark = uuid.uuid4().hex
        self.module = MODULES[verb]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pinchpoint", *(part.format(path=target) for part in COMMANDS[verb])],
            env={**os.environ, "TMPDIR": str(self.temp), "STARTED_BY": self.mark},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def alive(self) -> dict[int, str]:
        """Command lines by process. A process that has ended but is not reaped yet has no environment."""
        processes = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (path / "environ").read_bytes():
                    processes[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # ended meanwhile, or another user's
        return processes

    def workers(self) -> list[int]:
        return [pid for pid, line in self.alive().items() if self.module in line]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], RunningCommand]]:
    commands: list[RunningCommand] = []

    def start_command(verb: str) -> RunningCommand:
        commands.append(RunningCommand(verb, tmp_path))
        return commands[-1]

    yield start_command
    for command in commands:
        for pid in command.alive():
            os.kill(pid, signal.SIGKILL)
        command.process.wait()


def wait_until(condition: Callable[[], bool]) -> bool:
    """Poll, because other processes give nothing to wait for. The limit only ends a test that fails."""
    end = time.monotonic() + 600
    while not (reached := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return reached


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("verb", ["predict", "study"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_command_that_is_stopped_leaves_neither_workers_nor_files(
    start: Callable[[str], RunningCommand], verb: str, number: int, code: int
) -> None:
    command = start(verb)
    assert wait_until(lambda: len(command.workers()) >= WORKERS[verb]), command.alive()
    assert any(command.temp.iterdir())
    command.process.send_signal(number)
    assert command.process.wait(timeout=600) == code
    assert wait_until(lambda: not command.alive()), command.alive()
    assert wait_until(lambda: not any(command.temp.iterdir())), list(command.temp.rglob("*"))


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process and those it starts."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.mark.slow
def test_a_script_that_never_steps_leaves_nothing_in_the_temporary_folder(tmp_path: Path, temp: Path) -> None:
    script = tmp_path / "hang.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with Forecaster(str(script)) as forecaster:
        forecaster.timeout_s = 2.0  # only now, because importing torch may take longer
        with pytest.raises(TimedOut):
            forecaster.predict()
        assert any(temp.rglob("pinchpoint-script-*")), "the limit ends the worker before it can clean up"
    assert list(temp.iterdir()) == []
    assert not (tmp_path / "made.txt").exists()


@pytest.mark.slow
def test_a_target_that_cannot_be_imported_leaves_nothing_either(tmp_path: Path, temp: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\nraise SystemExit(3)\n", encoding="utf-8")
    with pytest.raises(TargetFailed), Forecaster(f"{tmp_path / 'broken.py'}:step_of"):
        pass
    assert list(temp.iterdir()) == []
