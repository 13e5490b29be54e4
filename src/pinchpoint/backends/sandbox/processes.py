"""`Processes`: refuses child processes, which would write outside the overlay, and signals to others.

Programs that only print information may run (see `safe_commands`). Others behave as if they were not
installed, because scripts handle that case: `subprocess` raises FileNotFoundError, and a shell exits with
127. `fork`, `exec` and `multiprocessing.Process` are refused; pools run in this process (`process_pools`).
Loopback and outgoing connections are allowed, because a script may have to download its data.
"""

from __future__ import annotations

import errno
import inspect
import os
import posix
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.sandbox import process_pools
from pinchpoint.backends.sandbox.files.audit_hook import WriteGuard
from pinchpoint.backends.sandbox.safe_commands import is_harmless, is_harmless_in_shell

_SHELLS = {"sh", "bash", "dash", "zsh"}
_NOT_FOUND = 127  # a shell's exit code for a program that is not installed


class RefusedProcess(FileNotFoundError, PermissionError):
    """A process that was not started.

    It has both base classes because `except FileNotFoundError` is the usual fallback for a missing program.
    """

    def __init__(self, what: str) -> None:
        super().__init__(errno.ENOENT, "pinchpoint starts no other process while it predicts a script", what)


class HardExit(SystemExit):
    """Replaces `os._exit`, which would end the prediction with the script and lose its result."""


class Processes:
    """Context manager. `refused_commands`: those that were not started, in order and each once."""

    def __init__(self, write_guard: WriteGuard) -> None:
        self.refused_commands: list[str] = []
        self._patches = Patches()
        self._write_guard = write_guard
        self._children: set[int] = set()
        self._starting = threading.local()

    def __enter__(self) -> Processes:
        for name, value in git_that_only_reads(os.environ).items():
            self._patches.set_environment(name, value)
        self._patches.set(subprocess.Popen, "__init__", self._popen(subprocess.Popen.__init__))
        self._patches.set(BaseProcess, "start", lambda process: self._start(process))
        process_pools.install(self._patches)
        self._patches.set(os, "system", self._system)
        self._patches.set(os, "_exit", _hard_exit)
        self._write_guard.check("os.fork", lambda: self._refuse("os.fork"))
        self._write_guard.check("os.forkpty", lambda: self._refuse("os.forkpty"))
        self._write_guard.check("os.exec", lambda path, args, env: self._refuse_program(path, args))
        self._write_guard.check("os.posix_spawn", lambda path, args, env: self._refuse_program(path, args))
        self._write_guard.check("os.kill", self._kill)
        self._write_guard.check("os.killpg", self._kill)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.undo()

    def _popen(self, start: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(start)

        def __init__(popen: Any, *args: Any, **kwargs: Any) -> None:
            call = signature.bind(popen, *args, **kwargs).arguments
            command, in_shell, program = _words(call["args"]), bool(call.get("shell")), call.get("executable")
            if in_shell:
                is_known_shell = program is None or os.path.basename(os.fsdecode(program)) in _SHELLS
                harmless = is_known_shell and len(command) == 1 and is_harmless_in_shell(command[0])
            else:
                harmless = is_harmless(command if program is None else [os.fsdecode(program), *command[1:]])
            if not harmless:
                if not in_shell:
                    self._refuse(shlex.join(command))
                self._note(command[0])
                message = f"pinchpoint: not started during the prediction: {command[0]}"
                call.update(args=f"echo {shlex.quote(message)} >&2; exit {_NOT_FOUND}", executable=None)
            if call.get("env") is not None:
                call["env"] = {**call["env"], **git_that_only_reads(call["env"])}
            self._starting.allowed = True
            try:
                start(**call)
            finally:
                self._starting.allowed = False
            self._children.add(popen.pid)

        return __init__

    def _start(self, process: BaseProcess) -> None:
        work = getattr(process, "_target", None)
        self._refuse(f"multiprocessing: {getattr(work, '__qualname__', None) or process.name}")

    def _system(self, command: Any) -> int:
        text = os.fsdecode(command)
        if is_harmless_in_shell(text):
            return posix.system(text)
        self._note(text)
        print(f"pinchpoint: not started during the prediction: {text}", file=sys.stderr)
        return _NOT_FOUND << 8

    def _note(self, what: str) -> None:
        if what not in self.refused_commands:
            self.refused_commands.append(what)

    def _refuse(self, what: str) -> None:
        self._note(what)
        raise RefusedProcess(what)

    def _refuse_program(self, path: Any, args: Any) -> None:
        if not getattr(self._starting, "allowed", False):
            self._refuse(shlex.join(_words(args) or [os.fsdecode(path)]))

    def _kill(self, pid: int, number: int) -> None:
        if number != 0 and pid != os.getpid() and pid not in self._children:
            name = signal.Signals(number).name
            raise PermissionError(
                errno.EPERM, f"pinchpoint prevents a predicted script from sending {name} to process {pid}"
            )


def git_that_only_reads(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep `git status` and `git diff` from rewriting the repository's index."""
    count = int(environment.get("GIT_CONFIG_COUNT", "0"))
    return {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": str(count + 1),
        f"GIT_CONFIG_KEY_{count}": "diff.autoRefreshIndex",
        f"GIT_CONFIG_VALUE_{count}": "false",
    }


def _hard_exit(status: int = 0) -> None:
    raise HardExit(status)


def _words(args: Any) -> list[str]:
    """The words of a command in any form that `subprocess` accepts."""
    if isinstance(args, (str, bytes, os.PathLike)):
        return [os.fsdecode(args)]
    return [os.fsdecode(word) for word in args]
