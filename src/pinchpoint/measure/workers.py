"""Fresh interpreters for measured runs, started ahead so that their imports cost no waiting.

Each answers one request and ends. While a run is timed every other one sits still. A worker is
ended by its own process group: on the time limit, on Ctrl-C and when the study is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pinchpoint.core.errors import BadInput, Missing, from_dict
from pinchpoint.measure.worker import Request

SOURCE = Path(__file__).resolve().parents[2]
AHEAD = 2  # a point takes two: one for its peak, one for its time


class Workers:
    """Answers requests for runs of one framework. ahead: how many interpreters wait for the next ones."""

    def __init__(self, framework: str, *, ahead: int = AHEAD) -> None:
        self._framework, self._ahead = framework, ahead
        self._waiting: deque[_Worker] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._waiting:
            self._waiting.popleft().end()

    def __call__(self, request: Request, *, timeout_s: float) -> dict[str, Any]:
        """One fresh interpreter. Raises only what would make every other point fail as well."""
        worker = self._waiting.popleft() if self._waiting else _Worker(self._framework)
        if request.what == "time":
            for other in self._waiting:
                other.await_ready(timeout_s)  # its imports would share the clock
        else:
            self._waiting.extend(_Worker(self._framework) for _ in range(self._ahead - len(self._waiting)))
        result = worker.answer(request, timeout_s=timeout_s)
        if "error" not in result:
            return result
        error = from_dict(result)
        if isinstance(error, (BadInput, Missing)):
            raise error
        return {"status": "failed", "reason": error.what, "mend": error.mend}


class _Worker:
    """An interpreter that imports its framework, says so, and waits for the one request it will answer."""

    def __init__(self, framework: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pinchpoint-")
        self._said = Path(self._folder.name) / "output.txt"
        self._ready, tell = os.pipe()
        with self._said.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pinchpoint.measure.worker", framework, str(tell)],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=_environment(), pass_fds=(tell,),
                start_new_session=True,
            )  # fmt: skip
        os.close(tell)

    def await_ready(self, timeout_s: float) -> None:
        """Its imports are done, or it has died: either way it is quiet now."""
        select.select([self._ready], [], [], timeout_s)

    def answer(self, request: Request, *, timeout_s: float) -> dict[str, Any]:
        asked, answered = (Path(self._folder.name) / name for name in ("request.json", "result.json"))
        asked.write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")
        assert self._process.stdin is not None
        start = time.monotonic()
        try:
            self.await_ready(timeout_s)
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(f"{asked}\n{answered}\n".encode())
                self._process.stdin.close()
            self._process.wait(timeout=max(timeout_s - (time.monotonic() - start), 0))
            if answered.exists():
                return json.loads(answered.read_text(encoding="utf-8"))
            return {"status": "failed", "reason": self._death()}
        except subprocess.TimeoutExpired:
            return {"status": "timeout", "reason": f"took longer than {timeout_s:g} s"}
        finally:
            self.end()

    def end(self) -> None:
        """Also what the target itself has started: loaders and compilers share the worker's group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        with contextlib.suppress(OSError):
            os.close(self._ready)
        self._folder.cleanup()

    def _death(self) -> str:
        code, output = self._process.returncode, self._said.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        last = f": {lines[-1][:200]}" if lines else ""
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL), most likely because the host ran out of memory"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}{last}"
        return f"exited with code {code} before it finished{last}"


def _environment() -> dict[str, str]:
    """The child finds this pinchpoint, also where it runs from a checkout."""
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
