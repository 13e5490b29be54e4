"""`WriteCalls`: replacements for `open` and the functions of `os` that write, which change scratch copies."""

from __future__ import annotations

import _io
import errno
import os
import posix
import stat as st
import threading
from collections.abc import Callable
from typing import Any

from pinchpoint.backends.sandbox.files.merged_view import RefusedWrite, View
from pinchpoint.backends.sandbox.files.read_calls import ReadCalls

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TMPFILE = getattr(os, "O_TMPFILE", 0)


class WriteCalls(ReadCalls):
    """One method per replaced function of `os`, with the same name, and `open_file` for `open`."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.next_open = threading.local()  # the path whose next "open" event the write guard must allow

    # --- opening

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not flags & WRITE_FLAGS:
            if not self._view.has_changes:
                return posix.open(path, flags, mode, dir_fd=dir_fd)
            return self._read(posix.open, path, dir_fd, not flags & os.O_NOFOLLOW, flags, mode)
        script_path = self._view.script_path(path, dir_fd)
        with self._view.lock:
            if _TMPFILE and flags & _TMPFILE == _TMPFILE:
                real_path = self._do(self._view.mirror, path, self._view.resolve(script_path, follow=True))
            else:
                real_path = self._for_writing(path, script_path, flags)
            return self._do(posix.open, path, real_path, flags, mode)

    def open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        """Replaces `open`; the file object keeps the name that the caller passed."""
        if not isinstance(file, int):
            file = os.fspath(file)
            opener = self.opener(file, mode, opener)
        return _io.open(file, mode, buffering, encoding, errors, newline, closefd, opener)

    def opener(
        self, file: Any, mode: str, opener: Callable[[Any, int], int] | None
    ) -> Callable[[Any, int], int] | None:
        """The opener for a file object: the caller's own, or one that redirects; None for the real file."""
        writes = not set(mode).isdisjoint("wax+")
        if writes:
            # The event of the file object has the caller's path; the open below it is checked again.
            self.next_open.path = file
        return self._opener if opener is None and (writes or self._view.has_changes) else opener

    def _opener(self, path: Any, flags: int) -> int:
        return self.open(path, flags, 0o666)

    def _for_writing(self, path: Any, script_path: str, flags: int) -> str:
        view = self._view
        place = (
            view.resolve(script_path, follow=not flags & (os.O_NOFOLLOW | os.O_EXCL)) if script_path else ""
        )
        if not place or view.is_own(place):
            return place
        status = view.status(place)
        if status is not None:
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise _error(errno.EEXIST, path)
            if st.S_ISDIR(status.st_mode) or st.S_ISLNK(status.st_mode):
                raise _error(errno.EISDIR if st.S_ISDIR(status.st_mode) else errno.ELOOP, path)
            return view.copy_up(place, contents=not flags & os.O_TRUNC)
        if not flags & os.O_CREAT:
            raise _error(errno.ENOENT, path)
        return self._new(path, place)

    # --- changing

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._make(posix.mkdir, path, dir_fd, mode)

    def mkfifo(self, path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        self._make(posix.mkfifo, path, dir_fd, mode)

    def mknod(self, path: Any, mode: int = 0o600, device: int = 0, *, dir_fd: int | None = None) -> None:
        self._make(posix.mknod, path, dir_fd, mode, device)

    def symlink(
        self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> None:
        self._make(lambda place: posix.symlink(os.fsdecode(src), place), dst, dir_fd)
        self._view.forget_links()

    def link(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Link to the copy in scratch, so that writing through either name never changes the real file."""
        with self._view.lock:
            source = self._find(src, src_dir_fd, follow=follow_symlinks)
            copy = self._view.copy_up(source)
            self._make(lambda place: posix.link(copy, place, follow_symlinks=False), dst, dst_dir_fd)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._view.lock:
            place = self._find(path, dir_fd, follow=False)
            if st.S_ISDIR(posix.lstat(self._view.locate(place)).st_mode):
                raise _error(errno.EISDIR, path)
            self._take_away(posix.unlink, path, place)

    remove = unlink

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._view.lock:
            place = self._find(path, dir_fd, follow=False)
            if not st.S_ISDIR(posix.lstat(self._view.locate(place)).st_mode):
                raise _error(errno.ENOTDIR, path)
            if self.listdir(place):
                raise _error(errno.ENOTEMPTY, path)
            self._take_away(posix.rmdir, path, place)

    def rename(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        view = self._view
        with view.lock:
            source = self._find(src, src_dir_fd, follow=False)
            target = view.resolve(view.script_path(dst, dst_dir_fd), follow=False)
            if source == target:
                return
            if view.is_own(source) or view.is_own(target):
                raise RefusedWrite("moving a device", source)
            is_folder, target_status = (
                st.S_ISDIR(posix.lstat(view.locate(source)).st_mode),
                view.status(target),
            )
            if target_status is not None and is_folder != st.S_ISDIR(target_status.st_mode):
                raise _error(errno.ENOTDIR if is_folder else errno.EISDIR, dst)
            if target_status is not None and is_folder and self.listdir(target):
                raise _error(errno.ENOTEMPTY, dst)
            if is_folder and target.startswith(source + "/"):
                raise _error(errno.EINVAL, dst)
            place = self._new(dst, target)
            view.copy_up_tree(source)
            self._do(posix.rename, src, view.copy_up(source), place)
            view.hide(source)
            view.hide(target)
            view.forget_links()

    replace = rename

    def truncate(self, path: Any, length: int) -> None:
        if isinstance(path, int):
            posix.truncate(path, length)  # a file that is open for writing is in scratch already
        else:
            self._change("truncate", path, None, True, length)

    def chmod(self, path: Any, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        self._change("chmod", path, dir_fd, follow_symlinks, mode)

    def fchmod(self, fd: int, mode: int) -> None:
        self.chmod(fd, mode)

    def chown(
        self, path: Any, uid: int, gid: int, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> None:
        self._change("chown", path, dir_fd, follow_symlinks, uid, gid)

    def lchown(self, path: Any, uid: int, gid: int) -> None:
        self.chown(path, uid, gid, follow_symlinks=False)

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        self.chown(fd, uid, gid)

    def utime(
        self,
        path: Any,
        times: Any = None,
        *,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
        **ns: Any,
    ) -> None:
        # Passed on unchanged: `times` and `ns` exclude each other, and omitting both means now.
        self._change("utime", path, dir_fd, follow_symlinks, *(() if times is None else (times,)), **ns)

    def setxattr(
        self, path: Any, attribute: Any, value: Any, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        self._change("setxattr", path, None, follow_symlinks, attribute, value, flags)

    def removexattr(self, path: Any, attribute: Any, *, follow_symlinks: bool = True) -> None:
        self._change("removexattr", path, None, follow_symlinks, attribute)

    # --- helpers

    def _find(self, path: Any, dir_fd: int | None, *, follow: bool) -> str:
        script_path = self._view.script_path(path, dir_fd)
        place = self._view.resolve(script_path, follow=follow) if script_path else ""
        if not place or self._view.status(place) is None:
            raise _error(errno.ENOENT, path)
        return place

    def _new(self, path: Any, place: str) -> str:
        """The path in scratch for something new at a resolved script path; creates its folder there."""
        folder = self._do(self._view.mirror, path, os.path.dirname(place))
        return f"{folder}/{os.path.basename(place)}"

    def _make(self, call: Callable[..., Any], path: Any, dir_fd: int | None, *args: Any) -> None:
        with self._view.lock:
            script_path = self._view.script_path(path, dir_fd)
            place = self._view.resolve(script_path.rstrip("/") or "/", follow=False) if script_path else ""
            if not place:
                raise _error(errno.ENOENT, path)
            if self._view.status(place) is not None:
                raise _error(errno.EEXIST, path)
            self._do(call, path, self._new(path, place), *args)

    def _take_away(self, call: Callable[[str], None], path: Any, place: str) -> None:
        real_path = self._view.locate(place)
        if self._view.inside(real_path):
            self._do(call, path, real_path)
        self._view.hide(place)
        self._view.forget_links()

    def _change(
        self, name: str, path: Any, dir_fd: int | None, follow: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Change a file's copy in scratch; a pipe or a removed file has no path and is changed directly."""
        script_path = self._view.script_path(path, dir_fd)
        if isinstance(path, int) and (not script_path or self._view.is_own(script_path)):
            getattr(posix, name)(path, *args, **kwargs)
            return
        with self._view.lock:
            place = self._find(path, dir_fd, follow=follow)
            if self._view.is_own(place):
                raise RefusedWrite("changing a device", place)
            copy = self._view.copy_up(place)
            if name == "truncate":
                self._do(posix.truncate, path, copy, *args)
            else:
                change = self._view.change_attribute
                self._do(change, path, name, copy, *args, follow_symlinks=follow, **kwargs)


def _error(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)
