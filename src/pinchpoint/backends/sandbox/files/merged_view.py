"""The merged view of a scratch folder above the real file system: which real path stands behind a path.

Paths the script uses are called shown paths. What it wrote lies at `scratch/files` + the shown path and is
seen first; what it removed is in `hidden` and is no longer seen; all else is the real file, which is only
ever read. Symbolic links are followed here, in shown paths, because a link in the scratch folder may point
at a file that is not.

Uses `posix` and `_io` directly: these are never patched, so the view cannot call itself.
"""

from __future__ import annotations

import _io
import errno
import os
import posix
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GIB = 2**30
_LINKS_MOST = 40  # as many as Linux follows before it gives ELOOP
_PROC_ENTRY = re.compile(r"/proc/(self|thread-self|\d+)/(fd/\d+|(?!cwd$|root$)[^/]+|task/\d+/[^/]+)")


class Refused(PermissionError):
    """A write that cannot be redirected into the scratch folder, or is too large to be."""

    def __init__(self, doing: str, path: str) -> None:
        super().__init__(errno.EACCES, f"pinchpoint keeps a predicted script from {doing}", path)


class View:
    """Scratch above real. `touched` is False until something was written: reads then go straight through."""

    def __init__(self, scratch: Path, *, copy_limit_bytes: int = 2 * GIB) -> None:
        os.makedirs(scratch, exist_ok=True)
        self.scratch = os.path.realpath(scratch)
        self.top = self.scratch + "/files"
        self.temp = self.scratch + "/tmp"
        for folder in (self.top, self.temp):
            os.makedirs(folder, exist_ok=True)
        self.cwd = os.getcwd()
        self.copy_limit_bytes = copy_limit_bytes
        self.touched = bool(posix.listdir(self.top))
        self.hidden: set[str] = set()
        self.changing = threading.RLock()
        self._hidden_in: set[str] = set()
        self._folders: dict[str, str] = {}  # folder as written -> with its links followed

    # --- names

    def shown(self, path: Any, dir_fd: int | None = None) -> str:
        """The absolute shown path (links not followed) of what a caller passed; "" for what has no path."""
        if isinstance(path, int):
            return self.shown_of_fd(path)
        text = os.fsdecode(path)
        if not text.startswith("/"):
            folder = self.cwd if dir_fd is None else self.shown_of_fd(dir_fd)
            if not text or not folder:
                return ""
            text = f"{folder}/{text}"
        return text[len(self.top) :] if text.startswith(self.top + "/") else text

    def shown_of_fd(self, fd: int) -> str:
        """The shown path of an open file; "" for a pipe, a socket or a file that was removed."""
        text = path_of_fd(fd)
        if not text.startswith("/") or text.endswith(" (deleted)"):
            return ""
        return text[len(self.top) :] if text.startswith(self.top + "/") else text

    def inside(self, path: str) -> bool:
        """Whether a real path lies in the scratch folder, where everything may be written."""
        return path == self.scratch or path.startswith(self.scratch + "/")

    def is_own(self, path: str) -> bool:
        """Devices, open files and the process's own entries in /proc: written to as they are."""
        if path.startswith("/proc/"):
            entry = _PROC_ENTRY.fullmatch(path)
            return entry is not None and entry[1] in ("self", "thread-self", str(posix.getpid()))
        if path.startswith("/dev/"):
            found = _lstat(path)
            return path.startswith(("/dev/fd/", "/dev/std")) or (
                found is not None and stat.S_ISCHR(found.st_mode)
            )
        return False

    def resolve(self, path: str, *, follow: bool) -> str:
        """The shown path with its folder's links followed, and with `follow` its own."""
        if self.is_own(path):
            return path
        folder, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            return walk(path, self._link)
        if folder not in self._folders:
            self._folders[folder] = walk(folder, self._link)
        here = f"{self._folders[folder].rstrip('/')}/{name}"
        if follow or path.endswith("/"):
            link = self._link(here)
            if link is not None:
                return walk(os.path.join(os.path.dirname(here), link), self._link)
        return here

    # --- where things are

    def is_hidden(self, path: str) -> bool:
        """Whether the script removed the real file, or a folder above it."""
        while self.hidden and len(path) > 1:
            if path in self.hidden:
                return True
            path = path[: path.rfind("/")]
        return False

    def locate(self, path: str) -> str:
        """The real path behind a resolved shown path: in the scratch folder if it is there or was removed."""
        if not self.touched or self.inside(path):
            return path
        written = self.top + path
        return written if _lstat(written) is not None or self.is_hidden(path) else path

    def spot(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
        """Where to read what a caller passed."""
        text = self.shown(path, dir_fd)
        return self.locate(self.resolve(text, follow=follow)) if text else ""

    def found(self, path: str) -> os.stat_result | None:
        """lstat of a resolved shown path, None if there is nothing."""
        return _lstat(self.locate(path))

    def layers(self, path: str) -> tuple[list[str], bool] | None:
        """What scratch holds of a resolved shown folder, and whether the real folder is seen below it.

        None when the real folder can be listed as it is.
        """
        if not self.touched or self.inside(path):
            return None
        written, gone = _lstat(self.top + path), self.is_hidden(path)
        if written is None and not gone and path not in self._hidden_in:
            return None
        above = posix.listdir(self.top + path) if written is not None or gone else []
        return above, not gone and _lstat(path) is not None

    def names(self, path: str) -> list[str] | None:
        """All a resolved shown folder holds; None when the real folder can be listed as it is."""
        layers = self.layers(path)
        if layers is None:
            return None
        above, seen_below = layers
        return above + self.still_seen(path, posix.listdir(path), above) if seen_below else above

    def still_seen(self, folder: str, names: list[str], above: list[str]) -> list[str]:
        """Those names of a real folder that were neither replaced in scratch nor removed."""
        start, covered = folder.rstrip("/") + "/", set(above)
        return [name for name in names if name not in covered and start + name not in self.hidden]

    def written(self, folder: str = "") -> Iterator[str]:
        """Shown paths of all files in scratch."""
        for entry in posix.scandir(self.top + folder):
            if entry.is_dir(follow_symlinks=False):
                yield from self.written(f"{folder}/{entry.name}")
            else:
                yield f"{folder}/{entry.name}"

    # --- making room for a change

    def hide(self, path: str) -> None:
        """No longer see the real file at `path`."""
        if _lstat(path) is not None and not self.is_hidden(path):
            self.hidden.add(path)
            self._hidden_in.add(os.path.dirname(path))
            self.touched = True

    def forget_links(self) -> None:
        """A link or a folder changed its place: follow links anew."""
        self._folders.clear()

    def mirror(self, folder: str) -> str:
        """Make a shown folder in scratch as well; FileNotFoundError if the script has no such folder."""
        if self.inside(folder):
            return folder
        written = self.top + folder if folder != "/" else self.top
        found = _lstat(written)
        if found is None:
            here = None if self.is_hidden(folder) else _lstat(folder)
            if here is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
            if stat.S_ISDIR(here.st_mode):
                self.mirror(os.path.dirname(folder))
                posix.mkdir(written, stat.S_IMODE(here.st_mode) | 0o700)
                self.touched = True
                return written
        elif stat.S_ISDIR(found.st_mode):
            return written
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)

    def raise_up(self, path: str, *, contents: bool = True) -> str:
        """Copy what is at a resolved shown path into scratch, if it is not there yet; folders without what they hold."""
        if self.inside(path) or self.is_own(path):
            return path
        written = self.top + path
        if _lstat(written) is not None:
            return written
        here = None if self.is_hidden(path) else _lstat(path)
        if here is None:
            return written
        if stat.S_ISDIR(here.st_mode):
            return self.mirror(path)
        self.mirror(os.path.dirname(path))
        if stat.S_ISLNK(here.st_mode):
            posix.symlink(posix.readlink(path), written)
        elif stat.S_ISREG(here.st_mode):
            if contents and here.st_size > self.copy_limit_bytes:
                raise Refused(
                    f"changing a file of {here.st_size:,} B (it may copy {self.copy_limit_bytes:,} B)", path
                )
            _copy(path if contents else os.devnull, written)
            posix.chmod(written, stat.S_IMODE(here.st_mode))
            posix.utime(written, ns=(here.st_atime_ns, here.st_mtime_ns))
        else:
            raise Refused("writing to a pipe or socket of other programs", path)
        self.touched = True
        return written

    def raise_tree(self, path: str) -> None:
        """`raise_up` of a folder and all it shows, so that it can be moved as one."""
        self.raise_up(path)
        found = self.found(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            for name in self.names(path) or []:
                self.raise_tree(f"{path}/{name}")

    def _link(self, path: str) -> str | None:
        return _readlink(self.locate(path))


def walk(path: str, readlink: Callable[[str], str | None]) -> str:
    """`path` with every link followed by `readlink`; parts that do not exist are kept."""
    done, rest, links = "", path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            done = done[: done.rfind("/")] if done else ""
            continue
        link = readlink(f"{done}/{name}")
        if link is None:
            done = f"{done}/{name}"
            continue
        links += 1
        if links > _LINKS_MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        done = "" if link.startswith("/") else done
        rest.extend(link.split("/")[::-1])
    return done or "/"


def real_path(path: str) -> str:
    """`path` as the kernel would follow it, whatever is patched."""
    return walk(path, _readlink)


def path_of_fd(fd: int) -> str:
    """What the kernel calls an open file; not a path for a pipe or socket."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(fd, 50, bytes(1024)).rstrip(b"\0"))  # F_GETPATH
    return posix.readlink(f"/proc/self/fd/{fd}")


def _lstat(path: str) -> os.stat_result | None:
    try:
        return posix.lstat(path)
    except OSError:
        return None


def _readlink(path: str) -> str | None:
    try:
        return posix.readlink(path)
    except OSError:
        return None


def _copy(source: str, target: str) -> None:
    with _io.open(source, "rb") as read, _io.open(target, "wb") as write:
        while block := read.read(2**20):
            write.write(block)
