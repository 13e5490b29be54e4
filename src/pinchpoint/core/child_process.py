"""Child processes that neither outlive this one, however it ends, nor leave files behind.

A child leads a session of its own, so that everything it starts can be ended at once; but then no signal
to this process reaches it. A warden, a shell that waits on a pipe from this process, kills the child's
group when the pipe closes without a message. This works even after SIGKILL, when no code of this process
can run any more, and while the child is in code that runs no Python threads. POSIX only.
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
        """End the process and whatever it forked or started, then the watch."""
        _kill(self._process)
        with contextlib.suppress(BrokenPipeError):
            self._watch.communicate(b"ended\n")


def _kill(process: subprocess.Popen[Any]) -> None:
    # On some systems, a group of dead processes only is reported as denied instead of missing.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
