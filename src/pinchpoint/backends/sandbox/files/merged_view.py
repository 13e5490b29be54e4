"""`View`: a scratch folder merged with the real file system below it; maps the script's paths to real paths.

Paths that the script uses are called script paths. What it wrote is at `scratch/files` + the script path and
takes precedence; what it removed is in `hidden_paths` and not visible; everything else is the real file,
which is only read. Symbolic links are followed here, in script paths, because a link in the scratch folder
may point to a file outside it.

The module uses `posix` and `_io` directly: these are never patched, so the view cannot call itself.
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
_MOST_LINKS = 40  # Linux follows this many links before it raises ELOOP
_PROC_ENTRY = re.compile(r"/proc/(self|thread-self|\d+)/(fd/\d+|(?!cwd$|root$)[^/]+|task/\d+/[^/]+)")


class RefusedWrite(PermissionError):
    """A write that cannot be redirected to the scratch folder, or is too large for it."""

    def __init__(self, doing: str, path: str) -> None:
        super().__init__(errno.EACCES, f"pinchpoint prevents a predicted script from {doing}", path)


class View:
    """Maps script paths to real paths. Until `has_changes`, reads use the real files directly."""

    def __init__(
        self,
        scratch: Path,
        *,
        copy_limit_bytes: int = 2 * GIB,
        change_attribute: Callable[..., None] | None = None,
    ) -> None:
        """change_attribute: see `kernel.delegate`; by default this process calls `posix` itself."""
        self.change_attribute = change_attribute or _change_attribute
        os.makedirs(scratch, exist_ok=True)
        self.scratch = os.path.realpath(scratch)
        self.top = self.scratch + "/files"
        self.temp = self.scratch + "/tmp"
        for folder in (self.top, self.temp):
            os.makedirs(folder, exist_ok=True)
        self.cwd = os.getcwd()
        self.copy_limit_bytes = copy_limit_bytes
        self.has_changes = bool(posix.listdir(self.top))
        self.hidden_paths: set[str] = set()
        self.lock = threading.RLock()
        self._hidden_in: set[str] = set()
        self._folders: dict[str, str] = {}  # folder as the script names it -> the same with links followed

    # --- names

    def script_path(self, path: Any, dir_fd: int | None = None) -> str:
        """The absolute script path (links not followed) of a caller's argument; "" if it has no path."""
        if isinstance(path, int):
            return self.script_path_of_fd(path)
        text = os.fsdecode(path)
        if not text.startswith("/"):
            folder = self.cwd if dir_fd is None else self.script_path_of_fd(dir_fd)
            if not text or not folder:
                return ""
            text = f"{folder}/{text}"
        return text[len(self.top) :] if text.startswith(self.top + "/") else text

    def script_path_of_fd(self, fd: int) -> str:
        """The script path of an open file; "" for a pipe, a socket or a file that was removed."""
        text = path_of_fd(fd)
        if not text.startswith("/") or text.endswith(" (deleted)"):
            return ""
        return text[len(self.top) :] if text.startswith(self.top + "/") else text

    def inside(self, path: str) -> bool:
        """Whether a real path is in the scratch folder, where everything is writable."""
        return path == self.scratch or path.startswith(self.scratch + "/")

    def is_own(self, path: str) -> bool:
        """Whether the path is a device, an open file or the process's /proc entry, written to directly."""
        if path.startswith("/proc/"):
            entry = _PROC_ENTRY.fullmatch(path)
            return entry is not None and entry[1] in ("self", "thread-self", str(posix.getpid()))
        if path.startswith("/dev/"):
            status = _lstat(path)
            return path.startswith(("/dev/fd/", "/dev/std")) or (
                status is not None and stat.S_ISCHR(status.st_mode)
            )
        return False

    def resolve(self, path: str, *, follow: bool) -> str:
        """The script path with links in its folder followed and, with `follow`, a link at its end too."""
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

    # --- real paths

    def is_hidden(self, path: str) -> bool:
        """Whether the script removed the real file, or a folder above it."""
        while self.hidden_paths and len(path) > 1:
            if path in self.hidden_paths:
                return True
            path = path[: path.rfind("/")]
        return False

    def locate(self, path: str) -> str:
        """The real path of a resolved script path: in scratch if the script wrote or removed it."""
        if not self.has_changes or self.inside(path):
            return path
        copy = self.top + path
        return copy if _lstat(copy) is not None or self.is_hidden(path) else path

    def path_to_read(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
        """The real path from which to read a caller's argument."""
        text = self.script_path(path, dir_fd)
        return self.locate(self.resolve(text, follow=follow)) if text else ""

    def status(self, path: str) -> os.stat_result | None:
        """lstat of a resolved script path, or None if it does not exist."""
        return _lstat(self.locate(path))

    def layers(self, path: str) -> tuple[list[str], bool] | None:
        """The names in scratch of a resolved script folder, and whether the real folder is visible below it.

        None if the real folder can be listed directly.
        """
        if not self.has_changes or self.inside(path):
            return None
        copy, is_hidden = _lstat(self.top + path), self.is_hidden(path)
        if copy is None and not is_hidden and path not in self._hidden_in:
            return None
        above = posix.listdir(self.top + path) if copy is not None or is_hidden else []
        return above, not is_hidden and _lstat(path) is not None

    def names(self, path: str) -> list[str] | None:
        """All names in a resolved script folder; None if the real folder can be listed directly."""
        layers = self.layers(path)
        if layers is None:
            return None
        above, shows_real = layers
        return above + self.visible_names(path, posix.listdir(path), above) if shows_real else above

    def visible_names(self, folder: str, names: list[str], above: list[str]) -> list[str]:
        """The names of a real folder that were neither replaced in scratch nor removed."""
        start, replacements = folder.rstrip("/") + "/", set(above)
        return [name for name in names if name not in replacements and start + name not in self.hidden_paths]

    def written_files(self, folder: str = "") -> Iterator[str]:
        """Script paths of all files in scratch."""
        for entry in posix.scandir(self.top + folder):
            if entry.is_dir(follow_symlinks=False):
                yield from self.written_files(f"{folder}/{entry.name}")
            else:
                yield f"{folder}/{entry.name}"

    # --- preparing a change

    def hide(self, path: str) -> None:
        """Make the real file at `path` invisible."""
        if _lstat(path) is not None and not self.is_hidden(path):
            self.hidden_paths.add(path)
            self._hidden_in.add(os.path.dirname(path))
            self.has_changes = True

    def forget_links(self) -> None:
        """Drop the cache of followed links, after a link or a folder moved."""
        self._folders.clear()

    def mirror(self, folder: str) -> str:
        """Create a script folder in scratch too; raise FileNotFoundError if the script has no such folder."""
        if self.inside(folder):
            return folder
        copy = self.top + folder if folder != "/" else self.top
        status = _lstat(copy)
        if status is None:
            here = None if self.is_hidden(folder) else _lstat(folder)
            if here is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
            if stat.S_ISDIR(here.st_mode):
                self.mirror(os.path.dirname(folder))
                posix.mkdir(copy, stat.S_IMODE(here.st_mode) | 0o700)
                self.has_changes = True
                return copy
        elif stat.S_ISDIR(status.st_mode):
            return copy
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)

    def copy_up(self, path: str, *, contents: bool = True) -> str:
        """Copy a resolved script path to scratch unless it is already there; folders without contents."""
        if self.inside(path) or self.is_own(path):
            return path
        copy = self.top + path
        if _lstat(copy) is not None:
            return copy
        here = None if self.is_hidden(path) else _lstat(path)
        if here is None:
            return copy
        if stat.S_ISDIR(here.st_mode):
            return self.mirror(path)
        self.mirror(os.path.dirname(path))
        if stat.S_ISLNK(here.st_mode):
            posix.symlink(posix.readlink(path), copy)
        elif stat.S_ISREG(here.st_mode):
            if contents and here.st_size > self.copy_limit_bytes:
                raise RefusedWrite(
                    f"changing a file of {here.st_size:,} B (at most {self.copy_limit_bytes:,} B are copied)",
                    path,
                )
            _copy(path if contents else os.devnull, copy)
            self.change_attribute("chmod", copy, stat.S_IMODE(here.st_mode))
            self.change_attribute("utime", copy, ns=(here.st_atime_ns, here.st_mtime_ns))
        else:
            raise RefusedWrite("writing to a pipe or socket of other programs", path)
        self.has_changes = True
        return copy

    def copy_up_tree(self, path: str) -> None:
        """Copy a folder and all its contents to scratch, so that it can be moved as a whole."""
        self.copy_up(path)
        status = self.status(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            for name in self.names(path) or []:
                self.copy_up_tree(f"{path}/{name}")

    def _link(self, path: str) -> str | None:
        return _readlink(self.locate(path))


def walk(path: str, readlink: Callable[[str], str | None]) -> str:
    """Follow every link in `path` with `readlink`; parts that do not exist stay unchanged."""
    result, rest, links = "", path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            result = result[: result.rfind("/")] if result else ""
            continue
        link = readlink(f"{result}/{name}")
        if link is None:
            result = f"{result}/{name}"
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        result = "" if link.startswith("/") else result
        rest.extend(link.split("/")[::-1])
    return result or "/"


def real_path(path: str) -> str:
    """`path` as the kernel would follow it, independent of the patches."""
    return walk(path, _readlink)


def path_of_fd(fd: int) -> str:
    """The kernel's name of an open file; not a path for a pipe or socket."""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(fd, 50, bytes(1024)).rstrip(b"\0"))  # F_GETPATH
    return posix.readlink(f"/proc/self/fd/{fd}")


def _change_attribute(name: str, path: str, *args: Any, **kwargs: Any) -> None:
    getattr(posix, name)(path, *args, **kwargs)


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
    with _io.open(source, "rb") as source_file, _io.open(target, "wb") as target_file:
        while block := source_file.read(2**20):
            target_file.write(block)
