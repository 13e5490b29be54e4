"""Folder entries of the merged view, in the shape of `os.DirEntry`.

Only folders the script changed are listed with these; all others keep the fast entries of `os.scandir`.
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
    """What `os.scandir` yields, answered through the merged view."""

    def __init__(self, view: View, folder: str, name: str, path: Any) -> None:
        self.name: Any = os.fsencode(name) if isinstance(path, bytes) else name
        self.path = path
        self._view = view
        self._shown = f"{folder.rstrip('/')}/{name}"

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._shown, follow_symlinks=follow_symlinks)

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
        found = self._view.found(self._view.resolve(self._shown, follow=follow))
        return 0 if found is None else found.st_mode


class Entries:
    """The iterator and context manager that `os.scandir` returns."""

    def __init__(self, found: list[Any]) -> None:
        self._found = iter(found)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._found)

    def __enter__(self) -> Entries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._found = iter(())


def entries(view: View, given: Any) -> Entries | None:
    """`os.scandir` of what a caller passed; None when the real folder can be scanned as it is."""
    folder = view.resolve(view.shown(given), follow=True)
    layers = view.layers(folder)
    if layers is None:
        return None
    above, seen_below = layers
    found: list[Any] = [Entry(view, folder, name, _joined(given, name)) for name in above]
    if seen_below and not isinstance(given, int) and real_path(_absolute(given)) == folder:
        # The kernel finds the same folder under the same name, so its own fast entries are right, but for links,
        # whose targets may have changed.
        real = {os.fsdecode(entry.name): entry for entry in posix.scandir(given)}
        for name in view.still_seen(folder, list(real), above):
            found.append(
                Entry(view, folder, name, real[name].path) if real[name].is_symlink() else real[name]
            )
    elif seen_below:
        names = view.still_seen(folder, posix.listdir(folder), above)
        found += [Entry(view, folder, name, _joined(given, name)) for name in names]
    return Entries(found)


def _absolute(given: Any) -> str:
    text = os.fsdecode(given)
    return text if text.startswith("/") else f"{posix.getcwd()}/{text}"


def _joined(given: Any, name: str) -> Any:
    """`os.scandir(fd)` gives bare names; bytes in, bytes out."""
    if isinstance(given, int):
        return name
    folder = os.fspath(given)
    return os.path.join(folder, os.fsencode(name) if isinstance(folder, bytes) else name)
