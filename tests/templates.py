"""Workers forked from a template that has imported torch, for tests of what a worker answers.

Importing torch takes seconds, and a fake run takes almost no time. The template imports only what
`pinchpoint.forecasting.worker_process.worker` imports before its target or for the forecast of a script.
If their environment differs in a variable that libraries may read when they are imported, the first worker
is started normally, and the next ones have a template of their own: a library may have set the variable for
good. Tests of the start itself are in tests/cli/test_stopped.py and test_predict.py.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

WORKER = [sys.executable, "-m", "pinchpoint.forecasting.worker_process.worker"]
FOR_SCRIPTS = (
    "pinchpoint.backends.torch.data_dependent.float_calls",
    "pinchpoint.backends.torch.loops.marking.condition_source",
    "pinchpoint.backends.torch.loops.marking.draw_source",
    "pinchpoint.backends.torch.loops.marking.lookups",
    "pinchpoint.backends.torch.ranks.objects",
    "pinchpoint.backends.torch.ranks.spawning",
    "pinchpoint.forecasting.worker_process.script_forecast",
)
# Variables that are read after the imports, or set by a library in a process that imports it.
AFTER_IMPORTS = re.compile(
    r"COLUMNS|IPYTHONDIR|TMPDIR|XDG_CONFIG_HOME|TORCHINDUCTOR_CACHE_DIR|TF_CPP_MIN_LOG_LEVEL|TPU_SKIP_MDS_QUERY"
    r"|PINCHPOINT_CARDS|PINCHPOINT_OPERATOR_STEP|RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO|PYTEST_.*"
)
MOST = 3  # templates: each takes 300 MB


LONGEST_S = 600.0  # limit of any wait here; it only ends a test that fails


class ForkedWorker:
    """The part of a Popen that `Forecaster` and `Warden` use."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin, self.stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)

    def wait(self) -> None:
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.002)  # the child of another process cannot be waited for
        raise TimeoutError(f"worker {self.pid} did not end")


class Template:
    """Processes that workers are forked from, one for each environment; the first starts with a worker."""

    PIPE = subprocess.PIPE

    def __init__(self, *imports: str) -> None:
        """imports: modules that the scripts of the workers import, if that takes long."""
        self._imports = imports
        self._running: dict[frozenset[tuple[str, str]], _Process] = {}
        self._known: set[frozenset[tuple[str, str]]] = set()
        self._lock = threading.Lock()

    def Popen(self, command: list[str], *, stderr: Any, env: dict[str, str], **options: Any) -> Any:
        """In place of subprocess.Popen within `pinchpoint.forecasting.forecaster`."""
        assert command == WORKER and options["start_new_session"]
        key = frozenset(item for item in env.items() if not AFTER_IMPORTS.fullmatch(item[0]))
        with self._lock:
            is_due = not self._running or (key in self._known and len(self._running) < MOST)
            if key not in self._running and is_due:
                self._running[key] = _Process(env, self._imports)
            self._known.add(key)
            if key in self._running:
                return self._running[key].fork(stderr, env)
        return subprocess.Popen(command, stderr=stderr, env=env, **options)

    def end(self) -> None:
        while self._running:
            self._running.popitem()[1].end()


class _Process:
    def __init__(self, env: dict[str, str], imports: tuple[str, ...]) -> None:
        self._line, theirs = socket.socketpair()
        self._line.settimeout(LONGEST_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *imports],
                env=env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, stderr: Any, env: dict[str, str]) -> ForkedWorker:
        (told, stdin), (stdout, answers) = os.pipe(), os.pipe()
        try:
            asked = json.dumps({"env": env, "cwd": os.getcwd()}).encode()
            socket.send_fds(self._line, [len(asked).to_bytes(4)], [told, answers, stderr.fileno()])
            self._line.sendall(asked)
            pid = int.from_bytes(self._line.recv(4, socket.MSG_WAITALL))
            assert pid, "the template or the worker died: its last words are on standard error"
        finally:
            os.close(told)
            os.close(answers)
        return ForkedWorker(pid, stdin, stdout)

    def end(self) -> None:
        self._line.close()
        try:
            self._process.wait(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def serve(line: socket.socket, imports: list[str]) -> None:
    """The template's own part: fork a worker for each request, until the line is closed."""
    from pinchpoint.backends.torch.fake import runner
    from pinchpoint.forecasting.worker_process import worker

    for name in FOR_SCRIPTS:
        importlib.import_module(name)
    # Half of what is imported is for the pretended device. Nothing of this one stays.
    with runner.simulate_device(
        runner.Device("a card", 2**30, (9, 0), 2**20, 2**20, 132), dynamic=runner.Dynamic()
    ):
        for name in imports:
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # none is awaited, and none stays
    while True:
        start, descriptors, _, _ = socket.recv_fds(line, 4, 3)
        if not start:
            return
        asked = json.loads(line.recv(int.from_bytes(start), socket.MSG_WAITALL))
        if os.fork() == 0:
            break
        for one in descriptors:
            os.close(one)
    pid = 0
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.path[0] = asked["cwd"]  # as by `-m`
        for number, one in enumerate(descriptors):
            os.dup2(one, number)
            os.close(one)
        pid = os.getpid()
    finally:
        line.sendall(pid.to_bytes(4))
        line.close()
    worker.main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
