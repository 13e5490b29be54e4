"""`Processes`: refuses child processes, which would write outside the overlay, and signals to others.

Programs of the system that only print information may run (see `programs`). Others behave as if they were
not installed, because scripts handle that case: `subprocess` raises FileNotFoundError, and a shell exits with
127. `fork`, `exec` and `multiprocessing.Process` are refused, unless the process is one rank of a parallel
job; pools run in this process (`process_pools`).
"""

from __future__ import annotations

import _io
import _posixsubprocess
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
from pinchpoint.backends.sandbox.kernel.c_functions import check_lookup
from pinchpoint.backends.sandbox.programs.program_paths import find_program, program_folders
from pinchpoint.backends.sandbox.programs.safe_commands import SHELLS, is_harmless, is_harmless_in_shell

# Variables through which another program or library would run inside an allowed one.
_HOOKS = ("LD_PRELOAD", "LD_AUDIT", "ENV", "BASH_ENV", "GIT_EXTERNAL_DIFF", "GIT_EXEC_PATH", "GIT_PAGER")
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

    def __init__(
        self,
        write_guard: WriteGuard,
        kill: Callable[[int, int], None] = posix.kill,
        start_process: Callable[[BaseProcess], bool] = lambda process: False,
    ) -> None:
        """kill: sends a signal to a program that the script has started, or with -PID to its group.

        start_process: runs a `multiprocessing.Process` in this process, or returns False, and it is refused.
        """
        self._kill_child = kill
        self._start_process = start_process
        self.refused_commands: list[str] = []
        self._patches = Patches()
        self._write_guard = write_guard
        self._children: set[int] = set()
        self._starting = threading.local()

    def __enter__(self) -> Processes:
        for name, value in git_that_only_reads(os.environ).items():
            self._patches.set_environment(name, value)
        # Open MPI starts a daemon in MPI_Init and ends the process if it cannot. Lightning calls MPI_Init.
        self._patches.set_environment("OMPI_MCA_ess_singleton_isolated", "1")
        self._patches.set(subprocess.Popen, "__init__", self._popen(subprocess.Popen.__init__))
        self._patches.set(BaseProcess, "start", lambda process: self._start(process))
        process_pools.install(self._patches)
        start = self._guard_start(_posixsubprocess.fork_exec)
        self._patches.set(_posixsubprocess, "fork_exec", start)
        if hasattr(subprocess, "_fork_exec"):
            self._patches.set(subprocess, "_fork_exec", start)
        self._patches.set(os, "system", self._system)
        self._patches.set(os, "_exit", _hard_exit)
        self._patches.set(os, "kill", self._send_signal)
        self._patches.set(os, "killpg", lambda group, number: self._send_signal(-group, number))
        if hasattr(signal, "pidfd_send_signal"):
            for module in (signal, sys.modules["_signal"]):
                self._patches.set(module, "pidfd_send_signal", self._send_signal_to_fd)
        self._write_guard.check("os.fork", lambda: self._refuse("os.fork"))
        self._write_guard.check("os.forkpty", lambda: self._refuse("os.forkpty"))
        self._write_guard.check("os.exec", lambda path, args, env: self._refuse_program(path, args))
        self._write_guard.check("os.posix_spawn", lambda path, args, env: self._refuse_program(path, args))
        self._write_guard.check("os.system", lambda command: self._refuse(os.fsdecode(command)))
        self._write_guard.check("os.kill", self._check_signal)
        self._write_guard.check("os.killpg", lambda group, number: self._check_signal(-group, number))
        self._write_guard.check("ctypes.dlsym", check_lookup)
        self._write_guard.check("ctypes.dlsym/handle", check_lookup)
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
            first = "/bin/sh" if in_shell else next(iter(command), "")
            name = first if program is None else os.fsdecode(program)
            file = self._find(name)
            if in_shell:
                is_known_shell = file is not None and os.path.basename(file) in SHELLS
                harmless = (
                    is_known_shell
                    and len(command) == 1
                    and is_harmless_in_shell(command[0], lambda word: self._find(word) is not None)
                )
            else:
                harmless = file is not None and is_harmless([name, *command[1:]])
            if not harmless:
                if not in_shell:
                    self._refuse(shlex.join(command))
                self._note(command[0])
                message = f"pinchpoint: not started during the prediction: {command[0]}"
                call.update(args=f"echo {shlex.quote(message)} >&2; exit {_NOT_FOUND}")
                file = find_program("/bin/sh", "/")
            call["executable"] = file
            call["env"] = _environment(os.environ if call.get("env") is None else call["env"])
            self._starting.allowed = True
            try:
                start(**call)
            finally:
                self._starting.allowed = False
            self._children.add(popen.pid)

        return __init__

    def _find(self, name: str) -> str | None:
        return find_program(name, posix.getcwd())

    def _guard_start(self, fork_exec: Callable[..., int]) -> Callable[..., int]:
        """Python's own way to start a program, which `multiprocessing` calls without `subprocess`."""

        def start(args: Any, executables: Any, *rest: Any) -> int:
            self._refuse_program(next(iter(executables), b"a program"), args)
            return fork_exec(args, executables, *rest)

        return start

    def _start(self, process: BaseProcess) -> None:
        if self._start_process(process):
            return
        work = getattr(process, "_target", None)
        self._refuse(f"multiprocessing: {getattr(work, '__qualname__', None) or process.name}")

    def _system(self, command: Any) -> int:
        code = subprocess.call(os.fsdecode(command), shell=True)
        return code << 8 if code >= 0 else -code  # as `wait` reports it

    def _note(self, what: str) -> None:
        if what not in self.refused_commands:
            self.refused_commands.append(what)

    def _refuse(self, what: str) -> None:
        self._note(what)
        raise RefusedProcess(what)

    def _refuse_program(self, path: Any, args: Any) -> None:
        if not getattr(self._starting, "allowed", False):
            self._refuse(shlex.join(_words(args) or [os.fsdecode(path)]))

    def _send_signal(self, pid: int, number: int) -> None:
        self._check_signal(pid, number)
        if abs(pid) in self._children:
            self._kill_child(pid, number)
        else:
            posix.kill(pid, number)

    def _send_signal_to_fd(self, pidfd: int, number: int, siginfo: None = None, flags: int = 0) -> None:
        with _io.open(f"/proc/self/fdinfo/{pidfd}", encoding="utf-8") as file:
            pids = [int(line[4:]) for line in file if line.startswith("Pid:")]
        if not pids or pids[0] < 1:
            raise ProcessLookupError(errno.ESRCH, "the process has ended")
        self._send_signal(pids[0], number)

    def _check_signal(self, pid: int, number: int) -> None:
        """pid: as `kill` takes it; the negative number of a group."""
        if number != 0 and pid != os.getpid() and abs(pid) not in self._children:
            name = signal.Signals(number).name
            raise PermissionError(
                errno.EPERM, f"pinchpoint prevents a predicted script from sending {name} to process {pid}"
            )


def _environment(variables: Mapping[Any, Any]) -> dict[str, str]:
    """The variables of an allowed program, without those that make it run another one."""
    texts = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
    kept = {
        name: value
        for name, value in texts.items()
        if name not in _HOOKS and not name.startswith("BASH_FUNC_")
    }
    return {**kept, **git_that_only_reads(kept), "PATH": os.pathsep.join(program_folders())}


def git_that_only_reads(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep git from rewriting the repository's index and from running a configured program."""
    count = int(environment.get("GIT_CONFIG_COUNT", "0"))
    settings = {"diff.autoRefreshIndex": "false", "core.fsmonitor": "false", "core.pager": "cat"}
    pairs = {
        f"GIT_CONFIG_{part}_{count + at}": text
        for at, setting in enumerate(settings.items())
        for part, text in zip(("KEY", "VALUE"), setting, strict=True)
    }
    return {"GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_COUNT": str(count + len(settings)), **pairs}


def _hard_exit(status: int = 0) -> None:
    raise HardExit(status)


def _words(args: Any) -> list[str]:
    """The words of a command in any form that `subprocess` accepts."""
    if isinstance(args, (str, bytes, os.PathLike)):
        return [os.fsdecode(args)]
    return [os.fsdecode(word) for word in args]
