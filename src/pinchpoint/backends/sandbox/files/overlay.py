"""A file system overlay made of patches: what a script writes lands in a scratch folder and it reads it back.

`Overlay(scratch)` is entered in a process of its own, around a user's script. Inside it `open`, `os`,
`pathlib`, `shutil`, `tempfile`, `sqlite3`, `dbm` and all that is built on them see the real files until the
script writes, moves or removes one; from then on they see the script's version and the real one is untouched.
Writes that cannot be redirected are refused (see `net`). Child processes are not covered: see `processes`.
"""

from __future__ import annotations

import builtins
import dbm
import glob
import io
import os
import sys
import tempfile
from abc import ABCMeta
from pathlib import Path
from types import TracebackType
from typing import Any

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.sandbox.files.audit_hook import Net
from pinchpoint.backends.sandbox.files.databases import connector, dbm_opener
from pinchpoint.backends.sandbox.files.merged_view import GIB, View
from pinchpoint.backends.sandbox.files.write_calls import Calls
from pinchpoint.backends.sandbox.rebinding import swap_imported

_FUNCTIONS = (
    "stat",
    "lstat",
    "access",
    "readlink",
    "listdir",
    "scandir",
    "statvfs",
    "getxattr",
    "listxattr",
    "getcwd",
    "getcwdb",
    "chdir",
    "fchdir",
    "open",
    "mkdir",
    "mkfifo",
    "mknod",
    "symlink",
    "link",
    "unlink",
    "remove",
    "rmdir",
    "rename",
    "replace",
    "truncate",
    "chmod",
    "fchmod",
    "chown",
    "lchown",
    "fchown",
    "utime",
    "setxattr",
    "removexattr",
)
_CAPABILITIES = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids)


class Overlay:
    """Context manager: inside, writes go under `scratch/files` at their absolute path, temporary files to `scratch/tmp`."""

    def __init__(self, scratch: Path, *, copy_limit_bytes: int = 2 * GIB) -> None:
        self._view = View(Path(scratch), copy_limit_bytes=copy_limit_bytes)
        self._calls = Calls(self._view)
        self.net = Net(self._view, self._calls)
        self._patches = Patches()
        self._swapped: list[tuple[Any, Any]] = []  # old and new function

    def __enter__(self) -> Overlay:
        for name in (name for name in _FUNCTIONS if hasattr(os, name)):
            old, new = getattr(os, name), getattr(self._calls, name)
            self._swap(os, name, new)
            for known in _CAPABILITIES:
                # Libraries ask `os.utime in os.supports_follow_symlinks`.
                if old in known:
                    known.add(new)
        new_open = self._calls.open_file
        self._swap(builtins, "open", new_open)
        self._patches.set(io, "open", new_open)
        self._swap(io, "FileIO", _file_io(self._calls))
        self._patch_databases()
        new_for_old = {id(old): new for old, new in self._swapped}
        self._patch_kept(new_for_old)
        swap_imported(new_for_old)
        self._patches.set(tempfile, "tempdir", self._view.temp)
        for name in ("TMPDIR", "TEMP", "TMP"):
            self._patches.set_environment(name, self._view.temp)
        self._patches.set(sys, "dont_write_bytecode", True)
        self.net.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.net.close()
        self._patches.undo()
        swap_imported({id(new): old for old, new in self._swapped})
        for known in _CAPABILITIES:
            known.difference_update(new for _, new in self._swapped)

    def locate(self, path: str | os.PathLike[str]) -> Path:
        """Where what the script sees at `path` really lies: in scratch if it wrote it there."""
        return Path(self._view.spot(path))

    def written(self) -> list[str]:
        """The files the script made or changed, by the paths it used."""
        return sorted(self._view.written())

    def removed(self) -> list[str]:
        """The real files and folders the script removed or moved away."""
        return sorted(self._view.hidden)

    def _swap(self, owner: Any, name: str, new: Any) -> None:
        self._swapped.append((getattr(owner, name), new))
        self._patches.set(owner, name, new)

    def _patch_databases(self) -> None:
        self._swap(dbm, "open", dbm_opener(self._view, dbm.open))
        try:
            import sqlite3
            from sqlite3 import dbapi2
        except ImportError:  # a Python built without it: nothing to redirect
            return
        connect = connector(self._view, sqlite3.connect)
        self._swap(sqlite3, "connect", connect)
        self._patches.set(dbapi2, "connect", connect)

    def _patch_kept(self, new_for_old: dict[int, Any]) -> None:
        """The standard library's own kept references that are not module names.

        pathlib's globber (3.13) keeps `os.scandir` in a class; tempfile keeps `os.unlink` in a default.
        """
        for globber in (value for value in vars(glob).values() if isinstance(value, type)):
            for name, value in list(vars(globber).items()):
                if isinstance(value, staticmethod) and id(value.__func__) in new_for_old:
                    self._patches.set(globber, name, staticmethod(new_for_old[id(value.__func__)]))
        for method in vars(getattr(tempfile, "_TemporaryFileCloser", object)).values():
            kept = getattr(method, "__defaults__", None) or ()
            if any(id(value) in new_for_old for value in kept):
                self._patches.set_defaults(method, tuple(new_for_old.get(id(value), value) for value in kept))


def _file_io(calls: Calls) -> type:
    """`io.FileIO` that opens through the overlay; every raw file still counts as one."""
    raw = io.FileIO

    class OfAnyFile(ABCMeta):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, raw)

    class FileIO(raw, metaclass=OfAnyFile):
        def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
            if not isinstance(file, int):
                file = os.fspath(file)
                opener = calls.opener(file, mode, opener)
            super().__init__(file, mode, closefd, opener)

    return FileIO
