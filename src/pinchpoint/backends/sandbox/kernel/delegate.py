"""`Delegate`: a process that does for the sandbox what the filter of `system_calls` refuses to the script.

The filter cannot see which file a call is about, so it refuses every change of modes, owners, times and
extended attributes. The overlay needs these calls for the script's own copies in the scratch folder, and the
script may end programs that it has started. This process, forked before the filter, makes such calls after
it has checked them.
"""

from __future__ import annotations

import contextlib
import os
import posix
import signal
import threading
import warnings
from multiprocessing import Pipe
from typing import Any

from pinchpoint.backends.sandbox.files.merged_view import real_path

_CHANGES = ("chmod", "chown", "utime", "setxattr", "removexattr")


class Delegate:
    """Forks at once, and ends with the process that started it."""

    def __init__(self, scratch: str | os.PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._questions = 0
        self._pipe, theirs = Pipe()
        script = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the child uses neither the threads nor the locks of its parent
            self._process = os.fork()
        if self._process == 0:
            _serve(theirs, os.path.realpath(scratch), script)
        theirs.close()

    def change_attribute(self, name: str, path: str, *args: Any, **kwargs: Any) -> None:
        """`posix.NAME(path, ...)` for a file in the scratch folder."""
        self._ask(name, path, *args, **kwargs)

    def kill(self, pid: int, number: int) -> None:
        """Send a signal to a child of this process, or to its group if `pid` is negative."""
        self._ask("kill", pid, number)

    def close(self) -> None:
        # The script may have closed the pipe, and has perhaps waited for all its children.
        with contextlib.suppress(OSError):
            # Not by the end of the pipe, which a process that C code has forked would hold open.
            self._pipe.send(None)
            posix.waitpid(self._process, 0)
        self._pipe.close()

    def _ask(self, *args: Any, **kwargs: Any) -> None:
        with self._lock:
            self._questions += 1
            question = self._questions
            self._pipe.send((question, args, kwargs))
            answered, error = self._pipe.recv()
            while answered != question:  # an answer that nobody waited for, because a signal interrupted it
                answered, error = self._pipe.recv()
        if error is not None:
            raise error


def _serve(pipe: Any, scratch: str, script: int) -> None:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Other files of the parent, such as the ends of its pipes, must not stay open here.
        os.closerange(0, pipe.fileno())
        os.closerange(pipe.fileno() + 1, 4096)
        while message := pipe.recv():
            question, (name, target, *args), kwargs = message
            answer: Exception | None = None
            try:
                _make_call(name, target, args, kwargs, scratch, script)
            except Exception as error:  # also a TypeError for a wrong argument of the script
                answer = error
            pipe.send((question, answer))
    finally:
        os._exit(0)


def _make_call(
    name: str, target: Any, args: list[Any], kwargs: dict[str, Any], scratch: str, script: int
) -> None:
    if name == "kill":
        if _parent_of(abs(target)) != script:
            raise PermissionError(1, "not a program that the script has started")
        posix.kill(target, *args)
        return
    folder, _, last = target.rpartition("/")
    place = real_path(target) if kwargs.get("follow_symlinks", True) else f"{real_path(folder)}/{last}"
    if name not in _CHANGES or not place.startswith(scratch + "/"):
        raise PermissionError(1, "not a file of the scratch folder")
    getattr(posix, name)(place, *args, **kwargs)


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])
