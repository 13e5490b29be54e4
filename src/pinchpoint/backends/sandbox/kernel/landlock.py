"""`lock`: let the kernel refuse writes outside a few folders (Linux Landlock), for libraries that write in C.

The overlay redirects what Python writes; a library that opens files by itself (HDF5, Arrow, OpenCV) bypasses
it. After `lock` the kernel refuses such a write with "permission denied". The same holds for every program
outside a list, whoever starts it. The lock applies to this thread and to the threads and processes it
starts, and it cannot be undone: call it only in a process for one script. What it does not cover is refused
by `system_calls`.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from collections.abc import Iterable

# System call numbers, which are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_EXECUTE, _WRITE_FILE, _REFER, _TRUNCATE, _IOCTL_DEVICE = 1, 1 << 1, 1 << 13, 1 << 14, 1 << 15
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
# Version 1 forbids every move between folders, even inside scratch; version 3 supports truncation (6.2).
_LEAST_VERSION = 3
_WITH_IOCTL, _WITH_SCOPES = 5, 6  # Linux 6.10 and 6.12
_WRITES = _WRITE_FILE | _TRUNCATE | _REFER | _REMOVE_AND_MAKE
# Devices that may be written to: streams, and GPUs, which `nvidia-smi` opens. Disks are not among them.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "nvidia*", "dri", "kfd", "dxg")


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def lock(writable: Iterable[str | os.PathLike[str]], programs: Iterable[str]) -> int:
    """Restrict this process; return the version of Landlock that holds it, 0 if the kernel cannot.

    writable: the folders below which files may be written, besides common devices and shared memory
    programs: the files that may be executed, or folders of them
    """
    if sys.platform != "linux":
        return 0
    system = ctypes.CDLL(None, use_errno=True)
    version = system.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if version < _LEAST_VERSION:
        return 0
    device_rights = _WRITE_FILE | _TRUNCATE | (_IOCTL_DEVICE if version >= _WITH_IOCTL else 0)
    writes = _WRITES | device_rights
    scopes = _ABSTRACT_SOCKETS | _SIGNALS if version >= _WITH_SCOPES else 0
    ruleset = _Ruleset(writes | _EXECUTE, 0, scopes)
    # Kernels without scopes accept a shorter structure only.
    size = ctypes.sizeof(ruleset) if scopes else ctypes.sizeof(ctypes.c_uint64)
    rules = _check(system.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0))
    try:
        for folder in writable:
            _allow(system, rules, os.fspath(folder), writes)
        for device in (path for name in _DEVICES for path in glob.glob(f"/dev/{name}")):
            _allow(system, rules, device, device_rights)
        # Semaphores and shared memory are created and removed; this process's own entries only written to.
        _allow(system, rules, "/dev/shm", _WRITES)
        _allow(system, rules, "/proc/self", _WRITE_FILE | _TRUNCATE)
        for program in programs:
            _allow(system, rules, program, _EXECUTE)
        _check(system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _check(system.syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)
    return version


def _allow(system: ctypes.CDLL, rules: int, place: str, rights: int) -> None:
    """Allow `rights` for a file, or for everything below a folder; one that does not exist needs no rule."""
    if not os.path.exists(place):
        return
    fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _Beneath(rights, fd)
        _check(system.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(fd)


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
