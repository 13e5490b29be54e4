"""Fresh interpreters for measured points: each answers one request and exits.

A worker and its child processes are ended at the time limit, on Ctrl-C, and when this process dies.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pinchpoint.core.child_process import Warden
from pinchpoint.core.errors import BadInput, Missing, from_dict
from pinchpoint.studies.worker import WHILE_TIMING, Request

SOURCE = Path(__file__).resolve().parents[2]


class Workers:
    """Answers requests for points of one framework, each in its own interpreter."""

    def __init__(self, framework: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="pinchpoint-")
        self._environment = _environment(framework, os.path.join(self._scratch.name, "bytecode"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.cleanup()

    def __call__(self, request: Request, *, timeout_s: float) -> dict[str, Any]:
        """Answer one request in a fresh interpreter.

        Raise only errors that would make every other point fail too.
        """
        with tempfile.TemporaryDirectory(prefix="point-", dir=self._scratch.name) as folder:
            result = self._answer(request, Path(folder), timeout_s)
        if "error" not in result:
            return result
        error = from_dict(result)
        if isinstance(error, (BadInput, Missing)):
            raise error
        return {"status": "failed", "reason": error.what, "hint": error.hint}

    def _answer(self, request: Request, folder: Path, timeout_s: float) -> dict[str, Any]:
        request_path, result_path, log_path = (
            folder / name for name in ("request.json", "result.json", "output.txt")
        )
        request_path.write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")
        with log_path.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "pinchpoint.studies.worker", str(request_path), str(result_path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
            warden = Warden(worker, self._scratch.name)
            late = False
            try:
                worker.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                warden.end()
        result = json.loads(result_path.read_text(encoding="utf-8")) if result_path.exists() else {}
        when = WHILE_TIMING if result else ""
        if late:
            return result | {"status": "timeout", "reason": f"{when}took longer than {timeout_s:g} s"}
        if worker.returncode:
            cause = _cause_of_death(worker.returncode, log_path.read_text(encoding="utf-8", errors="replace"))
            return result | {"status": "failed", "reason": when + cause}
        return result


def _environment(framework: str, bytecode: str) -> dict[str, str]:
    """Return the environment of a worker, in which it imports this pinchpoint, even from a checkout.

    A framework installed without bytecode, as in read-only containers, is compiled at every import,
    which takes seconds: the workers of one study then share the bytecode that the first one compiles.
    """
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    spec = importlib.util.find_spec(framework)
    if spec is not None and spec.origin and not (Path(spec.origin).parent / "__pycache__").exists():
        environment.setdefault("PYTHONPYCACHEPREFIX", bytecode)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _cause_of_death(code: int, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else ""
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), most likely because the host ran out of memory"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}{last}"
    return f"exited with code {code} before it finished{last}"
