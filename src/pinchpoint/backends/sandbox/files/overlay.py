"""`Overlay`: a file-system overlay made of patches, which redirects a script's writes to a scratch folder.

`Overlay(scratch)` is entered in a separate process, around a user's script. Inside it `open`, `os`,
`pathlib`, `shutil`, `tempfile`, `sqlite3`, `dbm` and everything built on them use the real files until the
script writes, moves or removes one; from then on they use the script's version, and the real one does not
change. Writes that cannot be redirected are refused (see `audit_hook`). Child processes are not covered: see
`processes`.
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
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.sandbox.files import shared_memory
from pinchpoint.backends.sandbox.files.audit_hook import WriteGuard
from pinchpoint.backends.sandbox.files.databases import connector, dbm_opener
from pinchpoint.backends.sandbox.files.merged_view import GIB, View
from pinchpoint.backends.sandbox.files.write_calls import WriteCalls
from pinchpoint.backends.sandbox.rebinding import Rebinding

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
    """Context manager: writes go to `scratch/files` + the absolute path, temporary files to `scratch/tmp`."""

    def __init__(
        self,
        scratch: Path,
        *,
        copy_limit_bytes: int = 2 * GIB,
        change_attribute: Callable[..., None] | None = None,
    ) -> None:
        self._view = View(Path(scratch), copy_limit_bytes=copy_limit_bytes, change_attribute=change_attribute)
        self._calls = WriteCalls(self._view)
        self.write_guard = WriteGuard(self._view, self._calls)
        self._patches = Patches()
        self._swaps: list[tuple[Any, Any]] = []  # old and new function
        self._rebinding = Rebinding(self._swaps)
        self._folder = self._view.cwd

    def __enter__(self) -> Overlay:
        for name in (name for name in _FUNCTIONS if hasattr(os, name)):
            old, new = getattr(os, name), getattr(self._calls, name)
            self._swap(os, name, new)
            for functions in _CAPABILITIES:
                # Libraries check `os.utime in os.supports_follow_symlinks`.
                if old in functions:
                    functions.add(new)
        new_open = self._calls.open_file
        self._swap(builtins, "open", new_open)
        self._patches.set(io, "open", new_open)
        self._swap(io, "FileIO", _file_io(self._calls))
        self._patch_databases()
        shared_memory.install(self._patches, self._calls.open, self._calls.unlink)
        self._patch_references({id(old): new for old, new in self._swaps})
        self._rebinding.apply()
        self._patches.set(tempfile, "tempdir", self._view.temp)
        for name in ("TMPDIR", "TEMP", "TMP"):
            self._patches.set_environment(name, self._view.temp)
        self._patches.set(sys, "dont_write_bytecode", True)
        self.write_guard.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write_guard.close()
        self._patches.undo()
        self._rebinding.undo()
        for functions in _CAPABILITIES:
            functions.difference_update(new for _, new in self._swaps)
        # A script that wrote to its folder and changed to it is in the copy of that folder in scratch.
        os.chdir(self._folder)

    def locate(self, path: str | os.PathLike[str]) -> Path:
        """The real path of the file that the script sees at `path`: in scratch if the script wrote it."""
        return Path(self._view.path_to_read(path))

    def written_files(self) -> list[str]:
        """The files that the script created or changed, by the paths it used."""
        return sorted(self._view.written_files())

    def _swap(self, owner: Any, name: str, new: Any) -> None:
        self._swaps.append((getattr(owner, name), new))
        self._patches.set(owner, name, new)

    def _patch_databases(self) -> None:
        self._swap(dbm, "open", dbm_opener(self._view, dbm.open))
        try:
            import sqlite3
            from sqlite3 import dbapi2
        except ImportError:  # Python was built without this module: there is nothing to redirect
            return
        connect = connector(self._view, sqlite3.connect)
        self._swap(sqlite3, "connect", connect)
        self._patches.set(dbapi2, "connect", connect)

    def _patch_references(self, new_for_old: dict[int, Any]) -> None:
        """Patch references of the standard library that are not names of a module.

        pathlib's globber (3.13) stores `os.scandir` in a class; tempfile stores `os.unlink` in a default.
        """
        for globber in (value for value in vars(glob).values() if isinstance(value, type)):
            for name, value in list(vars(globber).items()):
                if isinstance(value, staticmethod) and id(value.__func__) in new_for_old:
                    self._patches.set(globber, name, staticmethod(new_for_old[id(value.__func__)]))
        for method in vars(getattr(tempfile, "_TemporaryFileCloser", object)).values():
            defaults = getattr(method, "__defaults__", None) or ()
            if any(id(value) in new_for_old for value in defaults):
                self._patches.set_defaults(
                    method, tuple(new_for_old.get(id(value), value) for value in defaults)
                )


def _file_io(calls: WriteCalls) -> type:
    """`io.FileIO` that opens through the overlay; every raw file is still an instance of it."""
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
