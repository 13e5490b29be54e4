"""Writing results: a file is complete or absent, and an output path is checked before the work starts."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from pinchpoint.core.errors import BadInput

_LONGEST_INTEGER = 300  # digits; a float holds up to 308


def shown_path(file: str) -> str:
    """The path relative to the current folder when it lies below it, as messages show it.

    This is shorter, and the same on another machine. The path may end in a line number.
    """
    relative = os.path.relpath(file) if file else ""
    return relative if not relative.startswith("..") else file


def shown_operation(site: str) -> str:
    """`file:line (operation)` for `file:line:operation`, with the path as messages show it."""
    line, _, operation = shown_path(site).rpartition(":")
    return f"{line}:{operation}" if operation.isdigit() else f"{line} ({operation})"


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text from outside. Raises ValueError for every text that is not usable.

    That includes texts that are nested too deeply for Python, and integers that no float can hold.
    """
    try:
        return json.loads(text, parse_int=_parse_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse_int(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise ValueError(f"it has an integer of {len(digits):,} digits")
    return int(digits)


def json_fault(error: Exception) -> str:
    """Return a clause for what is wrong with a JSON file, from the error raised when it was read.

    Errors of a parser or a constructor are put into words; a plain ValueError says itself what is wrong.
    """
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON (line {error.lineno}, column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "it is not JSON (it is not UTF-8 text)"
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror})"
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, TypeError | AttributeError):
        return "a value is missing, unknown or of the wrong type"
    return str(error)


def write_text(path: str | Path, text: str) -> Path:
    """Write a file completely or not at all: write to a temporary name in the same folder, then rename."""
    return write_bytes(path, text.encode("utf-8"))


def check_output(path: str | Path) -> Path:
    """Raise if a path cannot be written; call this before the work whose result goes there."""
    path = Path(path)
    if path.is_dir():
        raise BadInput(
            f"Cannot write {path}: it is a folder.", hint="Give the path of a file, such as FILE.json."
        )
    handle, name = _temporary_file(path)
    os.close(handle)
    os.unlink(name)
    return path


def make_folder(path: str | Path) -> Path:
    """Create the folder if it does not exist and return it; raise if that is not possible."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise BadInput(
            f"Cannot create the folder {path}: {why}.", hint="Choose another folder with -o."
        ) from error
    return path


def check_folder(path: str | Path) -> Path:
    """Raise if a folder cannot be created; call this before the work whose results go there.

    Folders created for the check are removed again.
    """
    path = Path(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    make_folder(path)
    for folder in missing:  # the innermost first
        with suppress(OSError):  # another process may use the folder by now, or may have removed it
            folder.rmdir()
    return path


def write_bytes(path: str | Path, data: bytes) -> Path:
    with open_output(path) as file:
        file.write(data)
    return Path(path)


@contextmanager
def open_output(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file to write piece by piece; it appears under its name when all of it is written."""
    path = Path(path)
    handle, name = _temporary_file(path)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        # mkstemp creates private files; a result is for everyone who may read the folder.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:  # also on Ctrl-C, no half-written file is left
        with suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError) and error.filename not in (None, name):  # of an input
            raise BadInput(
                f"Cannot read {error.filename}: {error.strerror}.",
                hint="Check that the file exists and can be read.",
            ) from error
        if isinstance(error, OSError):
            raise BadInput(
                f"Cannot write {path}: {error.strerror}.", hint="Free some space, or choose another -o."
            ) from error
        raise


def _temporary_file(path: Path) -> tuple[int, str]:
    """Create a file beside `path`, and return its handle and its name."""
    try:
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise BadInput(
            f"Cannot write {path}: {error.strerror}.", hint="Choose a folder that exists and is writable."
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
