"""`PausedScript`: a script in a process of its own that runs a block of steps at each request."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinchpoint.core.records import Trace, load
from pinchpoint.profiling.profile import end_process, request_for, start_process


class PausedScript:
    """Starts the script at once. It waits at the end of its first step, and after each block of steps.

    sources: texts by file that run in place of what the script's files contain.
    """

    def __init__(
        self,
        target: str,
        *,
        args: Sequence[str] = (),
        sources: Mapping[str, str] | None = None,
        output_to_stderr: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pinchpoint-")
        self._record = Path(self._folder.name) / "trace.json"
        orders, self._orders = os.pipe()
        self._reports, reports = os.pipe()
        request = request_for(
            target,
            self._record,
            args=tuple(args),
            light=True,
            sources=None if sources is None else dict(sources),
            blocks=(orders, reports),
        )
        try:
            self._process: subprocess.Popen[Any] = start_process(
                request, sys.stderr if output_to_stderr else None, pass_fds=(orders, reports)
            )
        finally:
            os.close(orders)
            os.close(reports)

    def wait_until_ready(self, limit_s: float) -> bool:
        """Whether the script comes to the end of its first step; False if it ends or takes too long."""
        return self._report(limit_s) == "ready"

    def run_block(self, *, warmup: int, steps: int, limit_s: float) -> float | None:
        """Run both numbers of steps and return the seconds of the latter; None if the script ends."""
        try:
            os.write(self._orders, f"{warmup} {steps}\n".encode())
        except BrokenPipeError:
            return None
        report = self._report(limit_s)
        return float(report) if report else None

    def end(self) -> Trace | None:
        """Stop the script, if it runs, and return its Trace; None if it left none."""
        os.close(self._orders)
        end_process(self._process)
        os.close(self._reports)
        trace = load(self._record) if self._record.is_file() else None
        self._folder.cleanup()
        assert trace is None or isinstance(trace, Trace)
        return trace

    def _report(self, limit_s: float) -> str:
        """The next line of the script's process; empty if it ends, or if there is none in time."""
        give_up, text = time.monotonic() + limit_s, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reports, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                # A process that the script forked may keep the pipe open.
                is_alive = self._process.poll() is None
                if selector.select(0.2 if is_alive else 0.0):
                    part = os.read(self._reports, 64)
                    if not part:
                        return ""
                    text += part
                elif not is_alive or time.monotonic() > give_up:
                    return ""
        return text.decode().strip()
