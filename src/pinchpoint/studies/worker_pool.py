"""Fresh interpreters for measured points. Each answers one request and ends.

A worker is ended with all it started: on the time limit, on Ctrl-C, and when this process dies.
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
    """Answers requests for points of one framework, one interpreter each."""

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
        """One fresh interpreter. Raises only what would make every other point fail as well."""
        with tempfile.TemporaryDirectory(prefix="point-", dir=self._scratch.name) as folder:
            result = self._answer(request, Path(folder), timeout_s)
        if "error" not in result:
            return result
        error = from_dict(result)
        if isinstance(error, (BadInput, Missing)):
            raise error
        return {"status": "failed", "reason": error.what, "hint": error.hint}

    def _answer(self, request: Request, folder: Path, timeout_s: float) -> dict[str, Any]:
        asked, answered, said = (folder / name for name in ("request.json", "result.json", "output.txt"))
        asked.write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")
        with said.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "pinchpoint.studies.worker", str(asked), str(answered)],
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
        found = json.loads(answered.read_text(encoding="utf-8")) if answered.exists() else {}
        when = WHILE_TIMING if found else ""
        if late:
            return found | {"status": "timeout", "reason": f"{when}took longer than {timeout_s:g} s"}
        if worker.returncode:
            said_last = _death(worker.returncode, said.read_text(encoding="utf-8", errors="replace"))
            return found | {"status": "failed", "reason": when + said_last}
        return found


def _environment(framework: str, bytecode: str) -> dict[str, str]:
    """The child finds this pinchpoint, also where it runs from a checkout.

    A framework installed without its bytecode, as in read-only containers, is compiled at every
    import, for seconds: there the workers of one study share what the first has compiled.
    """
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    made = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    found = importlib.util.find_spec(framework)
    if found is not None and found.origin and not (Path(found.origin).parent / "__pycache__").exists():
        made.setdefault("PYTHONPYCACHEPREFIX", bytecode)
        made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


def _death(code: int, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else ""
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), most likely because the host ran out of memory"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}{last}"
    return f"exited with code {code} before it finished{last}"
