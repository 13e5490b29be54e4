"""Results on disk: whole or absent, and refused before the work when they could not be written."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pinchpoint.core.errors import BadInput


def shown_path(file: str) -> str:
    """Relative to here when it is below here: shorter, and the same on another machine. May end in a line number."""
    relative = os.path.relpath(file) if file else ""
    return relative if not relative.startswith("..") else file


def write_text(path: str | Path, text: str) -> Path:
    """Write whole or not at all: a temporary name beside the target, then rename."""
    return write_bytes(path, text.encode("utf-8"))


def check_output(path: str | Path) -> Path:
    """Refuse a path that cannot be written, before the work whose result it is to hold."""
    path = Path(path)
    if path.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder", hint="name a file, such as FILE.json")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise BadInput(
            f"cannot write {path}: {error.strerror}", hint="choose a folder that exists and can be written"
        ) from error
    os.close(handle)
    os.unlink(name)
    return path


def make_folder(path: str | Path) -> Path:
    """The folder, made if it is not there; refused where it cannot be."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot make the folder {path}: {error.strerror}", hint="choose another folder with -o"
        ) from error
    return path


def check_folder(path: str | Path) -> Path:
    """Refuse a folder that cannot be made, before the work whose results it is to hold; none is left behind."""
    path = Path(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    make_folder(path)
    for folder in missing:  # the innermost first
        folder.rmdir()
    return path


def write_bytes(path: str | Path, data: bytes) -> Path:
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise BadInput(
            f"cannot write {path}: {error.strerror}", hint="choose a folder that exists and can be written"
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes files private; a result is for everyone the folder is for.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:  # Ctrl-C too: nothing half written stays
        with suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise BadInput(
                f"cannot write {path}: {error.strerror}", hint="free some space, or choose another -o"
            ) from error
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
