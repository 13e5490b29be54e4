"""`ReadCalls`: replacements for the functions of `os` that read, which use the merged view.

Each has the signature of the function it replaces. They are bound methods, not functions, because a library
may store one as a class attribute, where a plain function would turn into a method and a built-in does not.
Errors name the path that the caller passed.
"""

from __future__ import annotations

import os
import posix
from collections.abc import Callable
from typing import Any

from pinchpoint.backends.sandbox.files.dir_entries import scan_folder
from pinchpoint.backends.sandbox.files.merged_view import RefusedWrite, View


class ReadCalls:
    """One method per replaced function of `os`, with the same name."""

    def __init__(self, view: View) -> None:
        self._view = view

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if isinstance(path, int) or not self._view.has_changes:
            return posix.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return self._read(posix.stat, path, dir_fd, follow_symlinks, follow_symlinks=follow_symlinks)

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def access(
        self,
        path: Any,
        mode: int,
        *,
        dir_fd: int | None = None,
        effective_ids: bool = False,
        follow_symlinks: bool = True,
    ) -> bool:
        real_path = self._view.path_to_read(path, dir_fd, follow=follow_symlinks)
        return posix.access(real_path, mode, effective_ids=effective_ids, follow_symlinks=follow_symlinks)

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        link = self._read(posix.readlink, path, dir_fd, False)
        return os.fsencode(link) if isinstance(path, bytes) else link

    def listdir(self, path: Any = None) -> list[Any]:
        folder = "." if path is None else path
        names = self._names(folder)
        if names is None:
            return posix.listdir(folder)
        return [os.fsencode(name) for name in names] if isinstance(folder, bytes) else names

    def scandir(self, path: Any = None) -> Any:
        folder = "." if path is None else path
        entries = self._do(scan_folder, folder, self._view, folder) if self._view.has_changes else None
        return posix.scandir(folder) if entries is None else entries

    def statvfs(self, path: Any) -> os.statvfs_result:
        return posix.statvfs(path) if isinstance(path, int) else self._read(posix.statvfs, path, None, True)

    def getxattr(self, path: Any, attribute: Any, *, follow_symlinks: bool = True) -> bytes:
        return self._read(
            posix.getxattr, path, None, follow_symlinks, attribute, follow_symlinks=follow_symlinks
        )

    def listxattr(self, path: Any = None, *, follow_symlinks: bool = True) -> list[str]:
        return self._read(
            posix.listxattr,
            "." if path is None else path,
            None,
            follow_symlinks,
            follow_symlinks=follow_symlinks,
        )

    def getcwd(self) -> str:
        return self._view.cwd

    def getcwdb(self) -> bytes:
        return os.fsencode(self._view.cwd)

    def chdir(self, path: Any) -> None:
        script_path = self._view.resolve(self._view.script_path(path), follow=True)
        self._do(posix.chdir, path, self._view.locate(script_path))
        self._view.cwd = script_path

    def fchdir(self, fd: int) -> None:
        self.chdir(fd)

    def _do(self, call: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except RefusedWrite:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    def _read(
        self, call: Callable[..., Any], path: Any, dir_fd: int | None, follow: bool, *args: Any, **kwargs: Any
    ) -> Any:
        real_path = path if isinstance(path, int) else self._view.path_to_read(path, dir_fd, follow=follow)
        return self._do(call, path, real_path, *args, **kwargs)

    def _names(self, folder: Any) -> list[str] | None:
        path = self._view.script_path(folder) if self._view.has_changes else ""
        return self._do(self._view.names, folder, self._view.resolve(path, follow=True)) if path else None
