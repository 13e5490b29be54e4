"""Run a script as `python script.py arguments` would, and say how it ended.

Standard output and error go to files, standard input is empty. The script is stopped from inside by raising
`StopScript` out of its training step. Handlers it registers for the end of the process are not run: they
would run after the sandbox is left. For the same reason the process should end with `os._exit` afterwards,
which also leaves behind any thread the script started.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pinchpoint.backends.patches import Patches

LINES_KEPT = 20


class StopScript(BaseException):
    """Enough steps were seen. No Exception, so that a script's `except Exception` does not catch it."""


class Stopper:
    """Counts steps and raises `StopScript` after the last one wanted, at every later step again.

    Again, because a script may catch even BaseException: it then comes to the next step, or to its end.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.taken = 0

    @property
    def done(self) -> bool:
        return self.taken >= self.wanted

    def step(self) -> None:
        """Count one step, then `raise_if_done`."""
        self.taken += 1
        self.raise_if_done()

    def raise_if_done(self) -> None:
        if self.done:
            raise StopScript


@dataclass(frozen=True)
class ScriptEnd:
    """How a script ended: ran to its end, called exit, was stopped after its steps, or raised."""

    kind: Literal["finished", "exited", "stopped", "raised"]
    code: int = 0  # what the process would have returned
    error: BaseException | None = None  # what was raised
    output: tuple[str, ...] = ()  # the last lines of standard output
    complaints: tuple[str, ...] = ()  # the last lines of standard error


def run_script(
    path: str | os.PathLike[str],
    argv: Sequence[str] = (),
    *,
    scratch: Path,
    stopper: Stopper | None = None,
    on_ready: Callable[[], None] | None = None,
) -> ScriptEnd:
    """Run the script here and now; `on_ready` is called just before its first line.

    Whatever the script does about `StopScript`, a stopper that is done makes the end "stopped". A script that
    cannot be read or compiled has "raised". KeyboardInterrupt is passed on.
    """
    file = os.path.abspath(path)
    logs = Path(scratch) / "stdout.txt", Path(scratch) / "stderr.txt"
    with _as_main(file, [os.fspath(path), *argv]) as module, _streams(*logs):
        kind, code, error = _run(file, module, on_ready)
    if stopper is not None and stopper.done:
        kind, code, error = "stopped", 0, None
    return ScriptEnd(kind, code, error, last_lines(logs[0]), last_lines(logs[1]))


def _run(
    file: str, module: types.ModuleType, on_ready: Callable[[], None] | None
) -> tuple[Literal["finished", "exited", "stopped", "raised"], int, BaseException | None]:
    try:
        code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
        if on_ready is not None:
            on_ready()
        exec(code, vars(module))
    except StopScript:
        return "stopped", 0, None
    except SystemExit as error:
        if isinstance(error.code, int) or error.code is None:
            return "exited", error.code or 0, error
        print(error.code, file=sys.stderr)  # as the interpreter does
        return "exited", 1, error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "raised", 1, error
    return "finished", 0, None


@contextlib.contextmanager
def _as_main(file: str, argv: list[str]) -> Iterator[types.ModuleType]:
    """A fresh `__main__` for the file, with its arguments and its folder on the path."""
    module = types.ModuleType("__main__")
    vars(module).update(
        __file__=file,
        __builtins__=builtins,
        __annotations__={},
        __loader__=importlib.machinery.SourceFileLoader("__main__", file),
    )
    before = sys.modules["__main__"], list(sys.path)
    patches = Patches()
    sys.modules["__main__"] = module
    patches.set(sys, "argv", argv)
    patches.set(atexit, "register", _forget)
    if sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]  # put there by `python -m` or `-c`, where `python script.py` puts the script's folder
    sys.path.insert(0, os.path.dirname(os.path.realpath(file)))
    try:
        yield module
    finally:
        patches.undo()
        sys.modules["__main__"], sys.path[:] = before


def _forget(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """`atexit.register` that keeps nothing."""
    return function


@contextlib.contextmanager
def _streams(out: Path, err: Path) -> Iterator[None]:
    """Standard input from nowhere, output and error to files, for Python and for C code alike."""
    rewrite = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    _flush()
    kept = [os.dup(fd) for fd in range(3)]
    for fd, (path, flags) in enumerate(((os.devnull, os.O_RDONLY), (out, rewrite), (err, rewrite))):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    patches = Patches()
    # The script's own objects: it may replace or close them, and ours stay as they are.
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        patches.set(
            sys,
            name,
            os.fdopen(fd, mode, buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False),
        )
    try:
        yield
    finally:
        _flush()
        patches.undo()
        for fd, copy in enumerate(kept):
            os.dup2(copy, fd)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            ValueError, AttributeError
        ):  # closed, or replaced by something that is no file
            stream.flush()


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of a log that say something; a progress bar's many states count as lines."""
    with log.open("rb") as file:
        file.seek(max(0, os.path.getsize(log) - 16_384))
        text = file.read().decode("utf-8", "replace")
    return tuple(line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip())[-LINES_KEPT:]
