"""`WriteGuard`: an audit hook that refuses a write which the overlay did not redirect.

An audit hook receives every `open` and every changing `os` call made from Python, including those through
functions obtained before the overlay (`posix.unlink`, a bound method) and through `sqlite3`. A write that is
neither in the scratch folder nor to the process's own entries is refused with a clear error. An audit hook
cannot be removed; after `close` it does nothing. It does not cover C code that bypasses the interpreter:
see `kernel`.
"""

from __future__ import annotations

import os
import posix
import stat
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from pinchpoint.backends.sandbox.files.merged_view import RefusedWrite, View, path_of_fd, real_path
from pinchpoint.backends.sandbox.files.write_calls import WRITE_FLAGS, WriteCalls


class WriteGuard:
    """Audit hook for one view. `check` adds events of other guards, so that one hook serves all."""

    def __init__(self, view: View, calls: WriteCalls) -> None:
        self._view = view
        self._next_open = calls.next_open
        self._checks: dict[str, Callable[..., None]] = {
            "open": self._open,
            "os.remove": lambda path, fd: self._refuse("removing", path, fd),
            "os.rmdir": lambda path, fd: self._refuse("removing", path, fd),
            "os.mkdir": lambda path, mode, fd: self._refuse("making", path, fd),
            "os.rename": self._rename,
            "os.link": lambda source, path, from_fd, fd: self._refuse("linking", path, fd),
            "os.symlink": lambda source, path, fd: self._refuse("linking", path, fd),
            "os.truncate": lambda path, length: self._refuse_followed("truncating", path),
            "os.chmod": lambda path, mode, fd: self._refuse("changing", path, fd),
            "os.chown": lambda path, uid, gid, fd: self._refuse("changing", path, fd),
            "os.chflags": lambda path, flags: self._refuse("changing", path),
            "os.utime": lambda path, times, ns, fd: self._refuse("changing", path, fd),
            "os.setxattr": lambda path, *rest: self._refuse("changing", path),
            "os.removexattr": lambda path, *rest: self._refuse("changing", path),
            "sqlite3.connect": self._database,
            "socket.bind": self._bind,
        }

    def check(self, event: str, call: Callable[..., None]) -> Callable[..., None] | None:
        """Add a check, and return the one that it replaces."""
        before = self._checks.get(event)
        self._checks[event] = call
        return before

    def open(self) -> None:
        checks = self._checks

        # A plain function: Python calls it for every `id` too, and a bound method takes three times as long.
        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event in checks:
                checks[event](*args)

        sys.addaudithook(hook)

    def close(self) -> None:
        self._checks.clear()

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(flags, int) or not flags & WRITE_FLAGS:
            return
        if path is getattr(self._next_open, "path", None):
            # Announced by the replacement of `open`, whose opener opens again with the redirected path.
            self._next_open.path = None
            return
        if not isinstance(path, int) and not self._is_stream(path):
            self._refuse_followed("writing to", path)

    def _rename(self, source: Any, target: Any, source_fd: int, target_fd: int) -> None:
        self._refuse("renaming", source, source_fd)
        self._refuse("replacing", target, target_fd)

    def _database(self, database: Any) -> None:
        text = os.fsdecode(database)
        if text.startswith("file:"):
            text = unquote(text[5:].partition("?")[0])
            text = text[2:] if text.startswith("///") else text
        if text not in ("", ":memory:"):
            self._refuse_followed("writing to the database", text)

    def _bind(self, sock: Any, address: Any) -> None:
        if isinstance(address, (str, bytes)) and address and os.fsdecode(address)[0] != "\0":
            self._refuse("making the socket", address)

    def _refuse_followed(self, doing: str, path: Any) -> None:
        """Refuse a call that acts on the target of a link. A file open for writing was allowed already."""
        if not isinstance(path, int) and not self._view.inside(real_path(self._kernel_path(path))):
            raise RefusedWrite(f"{doing} a file in a way that cannot be redirected", str(path))

    def _refuse(self, doing: str, path: Any, dir_fd: int = -1) -> None:
        """Refuse a call that acts on a name: links in its folder are followed, a link at the end is not."""
        if isinstance(path, int):
            is_allowed = self._may_change_open_file(path)
        else:
            folder, _, name = self._kernel_path(path, dir_fd).rstrip("/").rpartition("/")
            is_allowed = self._view.inside(f"{real_path(folder)}/{name}")
        if not is_allowed:
            raise RefusedWrite(f"{doing} a file in a way that cannot be redirected", str(path))

    def _kernel_path(self, path: Any, dir_fd: int = -1) -> str:
        text = os.fsdecode(path)
        if not text.startswith("/"):
            folder = posix.getcwd() if dir_fd < 0 else path_of_fd(dir_fd)
            text = f"{folder}/{text}"
        return text

    def _is_stream(self, path: Any) -> bool:
        """Whether the path is a terminal, null device, pipe or /proc entry; not a disk or a /dev/fd file."""
        text = self._kernel_path(path)
        if not self._view.is_own(text):
            return False
        try:
            mode = posix.stat(text).st_mode
        except OSError:
            return True  # the path does not exist, so the call fails anyway
        if text.startswith(("/dev/fd/", "/dev/std")) or "/fd/" in text:
            return not stat.S_ISREG(mode) or self._view.inside(real_path(text))
        return not stat.S_ISBLK(mode)

    def _may_change_open_file(self, fd: int) -> bool:
        """Whether an open file may be changed; a real file or folder was opened only for reading."""
        mode = posix.fstat(fd).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or self._view.inside(path_of_fd(fd))
