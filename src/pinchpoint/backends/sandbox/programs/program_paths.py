"""`find_program`: the file of a program in a system folder, whatever the script's PATH says.

A program is trusted by where it is, not by its name: a script's own `./git`, and a `git` in a folder that
comes first in PATH, are refused.
"""

from __future__ import annotations

import importlib.util
import os
import posix
import shutil
import stat
import struct
import sys
from collections.abc import Iterable, Iterator

from pinchpoint.backends.sandbox.files.merged_view import real_path

_SYSTEM_FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/cuda/bin",
    "/usr/lib/wsl/lib",  # nvidia-smi of the Windows subsystem for Linux
    "/run/current-system/sw/bin",
    "/opt/homebrew/bin",
)
_GIT_FOLDERS = ("/usr/lib/git-core", "/usr/libexec/git-core", "/usr/local/libexec/git-core")
_HEAD_BYTES = 4096  # enough of a program to see what starts it


def program_folders() -> list[str]:
    """The folders whose programs may run: those of the system, then those of the interpreter."""
    own = (os.path.dirname(sys.executable), f"{sys.prefix}/bin", f"{sys.base_prefix}/bin")
    return list(dict.fromkeys(folder for folder in (*_SYSTEM_FOLDERS, *own) if _is_folder(folder)))


def find_program(name: str, cwd: str) -> str | None:
    """The absolute path of a program by its name or path; None if it is not in one of `program_folders`."""
    folders = program_folders()
    if "/" in name:
        folder, _, last = os.path.join(cwd, name).rpartition("/")
        is_trusted = real_path(folder) in {real_path(trusted) for trusted in folders}
        return f"{folder}/{last}" if is_trusted and _is_program(f"{folder}/{last}") else None
    return next((path for folder in folders if _is_program(path := f"{folder}/{name}")), None)


def files_to_start(names: Iterable[str]) -> list[str]:
    """The files that the kernel must execute to run these programs, for those that are installed.

    They include all copies of a program, its loader or interpreter, and what git and ldconfig start.
    """
    folders = program_folders()
    places = [f"{folder}/{name}" for folder in folders for name in (*names, "ldconfig.real")]
    places += [f"{folder}/git" for folder in _GIT_FOLDERS]
    files = {real_path(place): None for place in places if _is_program(place)}
    for file in list(files):
        files |= {real_path(starter): None for starter in _starters(file)}
    return [file for file in files if _is_program(file)]


def cuda_tools() -> list[str]:
    """The folders and files of NVIDIA's compilers, which XLA starts to compile a script's programs."""
    spec = importlib.util.find_spec("nvidia")
    installed = list(spec.submodule_search_locations or ()) if spec is not None else []
    tools = [shutil.which(name) for name in ("ptxas", "nvlink", "fatbinary")]
    return [*installed, "/usr/local/cuda", *(tool for tool in tools if tool is not None)]


def _starters(file: str) -> Iterator[str]:
    """The loader of a binary, or the interpreter of a script and its loader."""
    try:
        with open(file, "rb") as opened:
            head = opened.read(_HEAD_BYTES)
    except OSError:
        return
    if head.startswith(b"#!"):
        words = head[2:].split(b"\n", 1)[0].split()
        if words:
            yield os.fsdecode(words[0])
            yield from _starters(os.fsdecode(words[0]))
    elif head.startswith(b"\x7fELF\x02\x01"):  # 64 bits, little-endian
        (at,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for start in range(at, min(at + size * count, len(head) - 40), size or 1):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, start)
            if kind == 3 and offset + length <= len(head):  # PT_INTERP
                yield os.fsdecode(head[offset : offset + length].rstrip(b"\0"))


def _is_program(path: str) -> bool:
    # The real file, not the script's version of it: that is what would run.
    try:
        return stat.S_ISREG(posix.stat(path).st_mode) and posix.access(path, os.X_OK)
    except OSError:
        return False


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(posix.stat(path).st_mode)
    except OSError:
        return False
