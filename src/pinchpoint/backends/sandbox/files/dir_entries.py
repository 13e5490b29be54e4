"""`scan_folder`: `os.scandir` for the merged view, with entries like `os.DirEntry`.

Only folders that the script changed use these entries; all others use the fast entries of `os.scandir`.
"""

from __future__ import annotations

import os
import posix
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from pinchpoint.backends.sandbox.files.merged_view import View, real_path


class Entry:
    """Like the entries of `os.scandir`, but for the merged view."""

    def __init__(self, view: View, folder: str, name: str, path: Any) -> None:
        self.name: Any = os.fsencode(name) if isinstance(path, bytes) else name
        self.path = path
        self._view = view
        self._script_path = f"{folder.rstrip('/')}/{name}"

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._script_path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        return False

    def _mode(self, follow: bool) -> int:
        status = self._view.status(self._view.resolve(self._script_path, follow=follow))
        return 0 if status is None else status.st_mode


class Entries:
    """The iterator and context manager that `os.scandir` returns."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def scan_folder(view: View, path: Any) -> Entries | None:
    """`os.scandir` of the path that a caller passed; None if the real folder can be scanned directly."""
    folder = view.resolve(view.script_path(path), follow=True)
    layers = view.layers(folder)
    if layers is None:
        return None
    above, shows_real = layers
    entries: list[Any] = [Entry(view, folder, name, _join(path, name)) for name in above]
    if shows_real and not isinstance(path, int) and real_path(_absolute(path)) == folder:
        # The kernel finds the same folder under the same name, so its own fast entries are correct, except
        # for links, whose targets may have changed.
        real = {os.fsdecode(entry.name): entry for entry in posix.scandir(path)}
        for name in view.visible_names(folder, list(real), above):
            entries.append(
                Entry(view, folder, name, real[name].path) if real[name].is_symlink() else real[name]
            )
    elif shows_real:
        names = view.visible_names(folder, posix.listdir(folder), above)
        entries += [Entry(view, folder, name, _join(path, name)) for name in names]
    return Entries(entries)


def _absolute(path: Any) -> str:
    text = os.fsdecode(path)
    return text if text.startswith("/") else f"{posix.getcwd()}/{text}"


def _join(path: Any, name: str) -> Any:
    """The path of an entry: a bare name for `os.scandir(fd)`, bytes for bytes."""
    if isinstance(path, int):
        return name
    folder = os.fspath(path)
    return os.path.join(folder, os.fsencode(name) if isinstance(folder, bytes) else name)
