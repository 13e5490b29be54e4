"""Child processes that neither outlive this one, however it ends, nor leave files behind.

A child leads a session of its own, so that everything it starts can be ended at once; but then no signal
to this process reaches it. A warden, a shell that waits on a pipe from this process, kills the child's
group when the pipe closes without a message. This works even if this process is killed with SIGKILL and can
run no cleanup code, and while the child runs native code that blocks its Python threads. POSIX only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any

# `read` fails at the end of the pipe, which arrives without a line only when this process is gone.
_WATCH = 'read -r line || { kill -s KILL -- "-$0"; rm -rf -- "$1"; }'


class Warden:
    """Watches `process`, which must be started with `start_new_session=True`.

    scratch: the child's folder, which is removed if this process dies.
    """

    def __init__(self, process: subprocess.Popen[Any], scratch: str) -> None:
        self._process = process
        try:
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, str(process.pid), scratch],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            _kill(process)
            raise

    def end(self) -> None:
        """End the process and everything it forked or started, then stop watching it."""
        _kill(self._process)
        with contextlib.suppress(BrokenPipeError):
            self._watch.communicate(b"ended\n")


def _kill(process: subprocess.Popen[Any]) -> None:
    # Some systems report a group that contains only dead processes as denied instead of missing.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
