"""The processes of the demo: several run at a time, each takes the next system when it has finished one.

A process that dies loses the system it was running; a new one takes its place. All of them end with this
process.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pinchpoint.core.child_process import Warden
from pinchpoint.core.errors import TargetFailed, to_dict
from pinchpoint.demo.stages import Message

AT_ONCE = 2  # processes; the demo is made for two cores


def processes_for(device: str) -> int:
    """How many processes to run at a time: one where a GPU is used, or where there is one core."""
    gpu = device != "cpu" and Path("/dev/nvidiactl").exists()
    return 1 if gpu else max(1, min(AT_ONCE, cores()))


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_systems(
    names: Sequence[str], output: Path, *, seed: int, device: str, on_message: Callable[[Message], None]
) -> None:
    """Run the stages of all systems; `on_message` is called with each message in this process."""
    waiting, at_once = list(names), min(processes_for(device), len(names))
    with ExitStack() as stack, selectors.DefaultSelector() as selector:

        def begin(process: _Process) -> None:
            process.ask(waiting.pop(0))
            selector.register(process.stdout, selectors.EVENT_READ, process)

        for _ in range(at_once):
            threads = max(1, cores() // at_once)
            begin(stack.enter_context(_Process(output, seed=seed, device=device, threads=threads)))
        while selector.get_map():
            for key, _ in selector.select():
                process: _Process = key.data
                for message in process.receive():
                    on_message(message)
                if process.system:
                    continue
                selector.unregister(process.stdout)
                if not waiting:
                    continue
                if process.is_dead:
                    process.end()
                    process.start()
                begin(process)


class _Process:
    """A process of the demo. system: the one it is running; empty if there is none."""

    def __init__(self, output: Path, *, seed: int, device: str, threads: int) -> None:
        self._command = [
            sys.executable,
            "-m",
            "pinchpoint.demo.worker",
            str(output.absolute()),
            str(seed),
            device,
        ]
        count = str(threads)
        # Each process has cores of its own: with more threads, the timings of one would disturb the other's.
        self._environment = {"OMP_NUM_THREADS": count, "NUMBA_NUM_THREADS": count, "MPLBACKEND": "Agg"}
        self._environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
        self._environment |= os.environ
        self.system = ""
        self.is_dead = False

    def __enter__(self) -> _Process:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="pinchpoint-demo-", ignore_cleanup_errors=True)
        self._log = Path(self._scratch.name, "output.txt")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Temporary files of a process that is killed are deleted with its folder. JAX compiles a
                # program that several cases share once.
                env={
                    **self._environment,
                    "TMPDIR": self._scratch.name,
                    "JAX_COMPILATION_CACHE_DIR": self._scratch.name,
                },
                start_new_session=True,
            )
        self._warden = Warden(self._process, self._scratch.name)
        self._text = b""
        self.is_dead = False

    def end(self) -> None:
        self._warden.end()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._scratch.cleanup()

    @property
    def stdout(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, system: str) -> None:
        assert self._process.stdin is not None
        self.system = system
        try:
            self._process.stdin.write(f"{system}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at the start; the end of its messages says so

    def receive(self) -> list[Message]:
        """The messages that have arrived. The last one of a process that died says why."""
        data = os.read(self.stdout, 1 << 16)
        if not data:
            return [self._death()]
        *lines, self._text = (self._text + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if any(message.get("done") for message in messages):
            self.system = ""
        return messages

    def _death(self) -> Message:
        code = self._process.wait()
        text = self._log.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        last = f": {lines[-1][:200]}" if lines else ""
        error = TargetFailed(
            f"The process ended with code {code}{last}.",
            hint=f"Run `pinchpoint demo --only {self.system}`; if the memory is short, close other programs.",
        )
        message = {
            "system": self.system,
            "stage": "process",
            "what": "",
            "error": to_dict(error),
            "done": True,
        }
        self.system, self.is_dead = "", True
        return message
