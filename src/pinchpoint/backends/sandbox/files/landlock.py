"""`lock`: let the kernel refuse writes outside a few folders (Linux Landlock), for libraries that write in C.

The overlay redirects what Python writes; a library that opens files by itself (HDF5, Arrow, OpenCV) bypasses
it. After `lock` the kernel refuses such a write with "permission denied". The lock applies to this thread and
to the threads and processes it starts, and it cannot be undone: call it only in a process for one script.
Landlock does not prevent C code from changing the mode, owner or times of a real file.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

# System call numbers, which are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_WRITE_FILE, _TRUNCATE, _REFER = 1 << 1, 1 << 14, 1 << 13
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
# Version 1 forbids every move between folders, even inside scratch; version 3 supports truncation.
_LEAST_VERSION = 3
_WRITES = _WRITE_FILE | _TRUNCATE | _REFER | _REMOVE_AND_MAKE


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def lock(writable: Iterable[str | os.PathLike[str]]) -> bool:
    """Let this process write only below `writable` and to devices; return False if the kernel cannot."""
    if sys.platform != "linux":
        return False
    system = ctypes.CDLL(None, use_errno=True)
    if system.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION) < _LEAST_VERSION:
        return False
    handled_rights = ctypes.c_uint64(_WRITES)
    rules = _check(
        system.syscall(_CREATE_RULESET, ctypes.byref(handled_rights), ctypes.sizeof(handled_rights), 0)
    )
    try:
        for folder in writable:
            _allow(system, rules, os.fspath(folder), _WRITES)
        # Devices and this process's own entries are only written to; shared memory is created and removed.
        _allow(system, rules, "/dev", _WRITE_FILE | _TRUNCATE)
        _allow(system, rules, "/dev/shm", _WRITES)
        _allow(system, rules, "/proc/self", _WRITE_FILE | _TRUNCATE)
        _check(system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _check(system.syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)
    return True


def _allow(system: ctypes.CDLL, rules: int, folder: str, rights: int) -> None:
    if not os.path.isdir(folder):
        return
    fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _Beneath(rights, fd)
        _check(system.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(fd)


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
