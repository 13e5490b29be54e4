"""`run_script`: run a script as `python script.py arguments` would, and report how it ended.

A module runs as by `python -m`, with the current folder on the path. The cells of a notebook run in their
order, in the notebook's folder (see `notebooks`).

Standard output and error go to files, standard input is empty. The script is stopped from inside by raising
`StopScript` in its training step. Its `atexit` handlers do not run, because they would run outside the
sandbox. For the same reason the process should end with `os._exit` afterwards, which also abandons any
thread that the script started.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import importlib
import importlib.machinery
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Literal

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.source_lines import is_user_file, is_user_module
from pinchpoint.backends.sandbox import notebooks
from pinchpoint.backends.sandbox.notebooks import NotebookCells

LINES_KEPT = 20


class StopScript(BaseException):
    """Ends a script after its steps. Not an Exception, so that `except Exception` does not catch it."""


class Stopper:
    """Counts steps and raises `StopScript` at the last one of `limit` steps and at every later one.

    A script may catch even BaseException; it then reaches the next step, or its end.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.steps = 0

    @property
    def is_done(self) -> bool:
        return self.steps >= self.limit

    def step(self) -> None:
        """Count one step, then `raise_if_done`."""
        self.steps += 1
        self.raise_if_done()

    def raise_if_done(self) -> None:
        if self.is_done:
            raise StopScript


@dataclass(frozen=True)
class ScriptEnd:
    """How a script ended: it finished, called exit, was stopped after its steps, or raised."""

    kind: Literal["finished", "exited", "stopped", "raised"]
    code: int = 0  # the exit code of the process
    error: BaseException | None = None  # the exception that it raised
    output: tuple[str, ...] = ()  # the last lines of standard output
    complaints: tuple[str, ...] = ()  # the last lines of standard error
    note: str | None = None  # what of a notebook was skipped


def run_script(
    path: str | os.PathLike[str],
    argv: Sequence[str] = (),
    *,
    scratch: Path,
    module: str = "",
    stopper: Stopper | None = None,
    on_ready: Callable[[], None] | None = None,
    transform: Callable[[ast.Module], ast.Module] | None = None,
) -> ScriptEnd:
    """Run the script in this process; `on_ready` is called just before its first line.

    transform: changes the code of the script, and of modules beside it, before it runs.
    module: the name of the module that `path` is the source of, to run it as by `python -m`.

    However the script handles `StopScript`, it counts as "stopped" once the stopper is done. A script that
    cannot be read or compiled counts as "raised". KeyboardInterrupt is raised again.
    """
    file = os.path.abspath(path)
    logs = Path(scratch) / "stdout.txt", Path(scratch) / "stderr.txt"
    cells = NotebookCells(file) if file.endswith(".ipynb") else None
    with (
        _as_main(file, [os.fspath(path), *argv], module) as main,
        _streams(*logs),
        _changed_imports(os.path.dirname(file), transform),
    ):
        kind, code, error = _run(file, main, cells, on_ready, transform)
    if stopper is not None and stopper.is_done:
        kind, code, error = "stopped", 0, None
    note = cells.note() if cells is not None else None
    return ScriptEnd(kind, code, error, last_lines(logs[0]), last_lines(logs[1]), note)


def run_unconfined(
    path: str | os.PathLike[str],
    argv: Sequence[str] = (),
    *,
    module: str = "",
    sources: Mapping[str, str] | None = None,
) -> ScriptEnd:
    """Run the script in this process as `python` would: with its real files, streams and exit handlers.

    It stays the `__main__` of the process, which should end soon afterwards.

    sources: texts by path that run in place of those of the script and of modules that it imports.
    """
    file = os.path.abspath(path)
    cells = NotebookCells(file) if file.endswith(".ipynb") else None
    texts = {os.path.realpath(name): text for name, text in (sources or {}).items()}
    with (
        _as_main(file, [os.fspath(path), *argv], module, lasts=True) as main,
        _replaced_sources(texts),
    ):
        kind, code, error = _run(file, main, cells, None, None, texts.get(os.path.realpath(file)))
    return ScriptEnd(kind, code, error, note=cells.note() if cells is not None else None)


class _Changed(SourceFileLoader):
    """Loads a module after a change of its code, which is not cached as bytecode."""

    transform: Callable[[ast.Module], ast.Module]

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        tree = self.transform(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)


@contextlib.contextmanager
def _changed_imports(folder: str, transform: Callable[[ast.Module], ast.Module] | None) -> Iterator[None]:
    """Change the user's own modules as well: in the script's folder, elsewhere, or installed as editable."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            spec = PathFinder.find_spec(name, path, target)
            for finder in _editable_finders() if spec is None else ():
                spec = spec or finder.find_spec(name, path, target)
            if spec is None or type(spec.loader) is not SourceFileLoader:
                return None
            origin = spec.origin or ""
            is_beside = origin.startswith(os.path.join(folder, "")) and is_user_file(origin)
            if not (is_beside or is_user_module(origin)):
                return None
            loader = _Changed(spec.loader.name, spec.loader.path)
            loader.transform = transform  # pyright: ignore[reportAttributeAccessIssue]
            spec.loader = loader
            return spec

    if transform is None:
        yield
        return
    sys.meta_path.insert(0, Finder)  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        sys.meta_path.remove(Finder)  # pyright: ignore[reportArgumentType]


def _editable_finders() -> list[Any]:
    """The finders that `pip install -e` adds; other ways to install so add a folder to the path."""
    every = ((one, one if isinstance(one, type) else type(one)) for one in sys.meta_path)
    return [one for one, kind in every if "editable" in f"{kind.__module__}.{kind.__name__}".lower()]


class _Replaced(SourceFileLoader):
    """Loads a module from another text than that of its file; nothing is cached as bytecode."""

    text: str

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self.text, self.get_filename(fullname), "exec", dont_inherit=True)


@contextlib.contextmanager
def _replaced_sources(texts: Mapping[str, str]) -> Iterator[None]:
    """Import modules from these texts, by path, and show their lines in tracebacks."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            spec = PathFinder.find_spec(name, path, target)
            text = texts.get(os.path.realpath(spec.origin)) if spec is not None and spec.origin else None
            if spec is None or text is None or type(spec.loader) is not SourceFileLoader:
                return None
            loader = _Replaced(spec.loader.name, spec.loader.path)
            loader.text = text
            spec.loader = loader
            return spec

    if not texts:
        yield
        return
    for file, text in texts.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    sys.meta_path.insert(0, Finder)  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        sys.meta_path.remove(Finder)  # pyright: ignore[reportArgumentType]


def _run(
    file: str,
    module: types.ModuleType,
    cells: NotebookCells | None,
    on_ready: Callable[[], None] | None,
    transform: Callable[[ast.Module], ast.Module] | None,
    text: str | None = None,
) -> tuple[Literal["finished", "exited", "stopped", "raised"], int, BaseException | None]:
    try:
        sources: Iterable[tuple[str, Any]] = cells or [
            (file, Path(file).read_bytes() if text is None else text)
        ]
        if on_ready is not None:
            on_ready()
        if module.__package__:
            importlib.import_module(module.__package__)
        for name, source in sources:
            code = source if transform is None else transform(ast.parse(source, name))
            exec(compile(code, name, "exec", dont_inherit=True), vars(module))
    except StopScript:
        return "stopped", 0, None
    except SystemExit as error:
        if isinstance(error.code, int) or error.code is None:
            return "exited", error.code or 0, error
        print(error.code, file=sys.stderr)  # like the interpreter
        return "exited", 1, error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "raised", 1, error
    return "finished", 0, None


@contextlib.contextmanager
def _as_main(
    file: str, argv: list[str], name: str = "", *, lasts: bool = False
) -> Iterator[types.ModuleType]:
    """A fresh `__main__` for the file, with its arguments and its folder on the path.

    name: of the module, which gives it a package and the current folder on the path
    lasts: until the process ends, for the script's exit handlers and threads, which are otherwise dropped
    """
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    vars(module).update(__file__=file, __builtins__=builtins, __annotations__={}, __loader__=loader)
    here, folder = os.getcwd(), os.path.dirname(os.path.realpath(file))
    if name:
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader, origin=file)
        module.__package__, argv = name.rpartition(".")[0], [file, *argv[1:]]
        folder = here
    if file.endswith(".ipynb"):
        vars(module).update(notebooks.names())
        del module.__file__
        os.chdir(folder)
    before = sys.modules["__main__"], list(sys.path)
    patches = Patches()
    sys.modules["__main__"] = module
    patches.set(sys, "argv", argv)
    if not lasts:
        patches.set(atexit, "register", _forget)
    if sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]  # added by `python -m` or `-c`, where `python script.py` adds the script's folder
    sys.path.insert(0, folder)
    try:
        yield module
    finally:
        if not lasts:
            patches.undo()
            sys.modules["__main__"], sys.path[:] = before
            os.chdir(here)  # the script may have removed the folder that it is in


def _forget(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Replace `atexit.register`, but register nothing."""
    return function


@contextlib.contextmanager
def _streams(out: Path, err: Path) -> Iterator[None]:
    """Make standard input empty, and redirect output and error of Python and C code to files."""
    rewrite = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    _flush()
    copies = [os.dup(fd) for fd in range(3)]
    for fd, (path, flags) in enumerate(((os.devnull, os.O_RDONLY), (out, rewrite), (err, rewrite))):
        new_fd = os.open(path, flags, 0o600)
        os.dup2(new_fd, fd)
        os.close(new_fd)
    patches = Patches()
    # New objects for the script: it may replace or close them without changing ours.
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
        for fd, copy in enumerate(copies):
            os.dup2(copy, fd)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The stream may be closed, or replaced by an object that is not a file.
        with contextlib.suppress(ValueError, AttributeError):
            stream.flush()


def last_lines(log: Path) -> tuple[str, ...]:
    """The last non-empty lines of a log; each state of a progress bar counts as a line."""
    with log.open("rb") as file:
        file.seek(max(0, os.path.getsize(log) - 16_384))
        text = file.read().decode("utf-8", "replace")
    return tuple(line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip())[-LINES_KEPT:]
