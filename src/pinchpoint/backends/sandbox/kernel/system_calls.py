"""`filter_calls`: let the kernel refuse system calls that change something outside the sandbox (seccomp).

Landlock decides about files by their path. What it does not cover is refused here by the number of the call:
changes of modes, owners, times and extended attributes, signals to other processes, and administration
(mounts, clocks, modules). Calls of C code and of `ctypes` are refused too, with "operation not permitted".
io_uring, whose operations no filter sees, appears as not implemented. The filter applies to this thread and
to the threads and processes it starts, and it cannot be undone: call it only in a process for one script.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from dataclasses import dataclass

_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38

# Instructions of the filter (struct sock_filter): operation, jump if true, jump if false, operand.
_LOAD, _RETURN, _IF_EQUAL, _IF_AT_LEAST = 0x20, 0x06, 0x15, 0x35
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST, _AT_SECOND = 0, 4, 16, 24  # in struct seccomp_data
_X32 = 0x40000000  # the first number of another interface on x86-64

# Calls with the same number on every architecture.
_NEW_CALLS = {
    "pidfd_send_signal": 424,
    "pidfd_getfd": 438,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "file_setattr": 469,
}
_IO_URING_SETUP = 425


@dataclass(frozen=True)
class _Architecture:
    audit_number: int
    refused: dict[str, int]
    to_process: dict[str, int]  # calls whose first argument is the process that gets a signal
    kill: int


_ARCHITECTURES = {
    "x86_64": _Architecture(
        0xC000003E,
        {
            "chmod": 90,
            "fchmod": 91,
            "chown": 92,
            "fchown": 93,
            "lchown": 94,
            "ptrace": 101,
            "utime": 132,
            "pivot_root": 155,
            "adjtimex": 159,
            "chroot": 161,
            "acct": 163,
            "settimeofday": 164,
            "mount": 165,
            "umount2": 166,
            "swapon": 167,
            "swapoff": 168,
            "reboot": 169,
            "sethostname": 170,
            "setdomainname": 171,
            "init_module": 175,
            "delete_module": 176,
            "setxattr": 188,
            "lsetxattr": 189,
            "fsetxattr": 190,
            "removexattr": 197,
            "lremovexattr": 198,
            "fremovexattr": 199,
            "clock_settime": 227,
            "utimes": 235,
            "mq_unlink": 241,
            "kexec_load": 246,
            "add_key": 248,
            "keyctl": 250,
            "fchownat": 260,
            "futimesat": 261,
            "fchmodat": 268,
            "utimensat": 280,
            "clock_adjtime": 305,
            "process_vm_writev": 311,
            "finit_module": 313,
            "kexec_file_load": 320,
            "bpf": 321,
        },
        {"rt_sigqueueinfo": 129, "tkill": 200, "tgkill": 234, "rt_tgsigqueueinfo": 297},
        62,
    ),
    "aarch64": _Architecture(
        0xC00000B7,
        {
            "setxattr": 5,
            "lsetxattr": 6,
            "fsetxattr": 7,
            "removexattr": 14,
            "lremovexattr": 15,
            "fremovexattr": 16,
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "chroot": 51,
            "fchmod": 52,
            "fchmodat": 53,
            "fchownat": 54,
            "fchown": 55,
            "utimensat": 88,
            "acct": 89,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "clock_settime": 112,
            "ptrace": 117,
            "reboot": 142,
            "sethostname": 161,
            "setdomainname": 162,
            "settimeofday": 170,
            "adjtimex": 171,
            "mq_unlink": 181,
            "add_key": 217,
            "keyctl": 219,
            "swapon": 224,
            "swapoff": 225,
            "clock_adjtime": 266,
            "process_vm_writev": 271,
            "finit_module": 273,
            "bpf": 280,
            "kexec_file_load": 294,
        },
        {"tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240},
        129,
    ),
}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def can_filter() -> bool:
    """Whether the filter is known for this machine; a container may still forbid it."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES and struct.calcsize("P") == 8


def filter_calls() -> bool:
    """Refuse the calls from now on; return False if this machine or its container does not allow filters."""
    if not can_filter():
        return False
    text = b"".join(_instructions(_ARCHITECTURES[platform.machine()], os.getpid()))
    program = _Program(len(text) // 8, text)
    system = ctypes.CDLL(None, use_errno=True)
    if system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) < 0:
        return False
    return system.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0


def _instructions(machine: _Architecture, pid: int) -> list[bytes]:
    refuse = _step(_RETURN, _FAIL | errno.EPERM)
    steps = [
        _step(_LOAD, _AT_ARCHITECTURE),
        _step(_IF_EQUAL, machine.audit_number, 1, 0),
        refuse,
        _step(_LOAD, _AT_NUMBER),
        _step(_IF_AT_LEAST, _X32, 0, 1),
        refuse,
        _step(_IF_EQUAL, _IO_URING_SETUP, 0, 1),
        _step(_RETURN, _FAIL | errno.ENOSYS),
    ]
    for number in (*machine.refused.values(), *_NEW_CALLS.values()):
        steps += [_step(_IF_EQUAL, number, 0, 1), refuse]
    allow = _step(_RETURN, _ALLOW)
    for number in machine.to_process.values():
        steps += [_step(_IF_EQUAL, number, 0, 4), _step(_LOAD, _AT_FIRST), _step(_IF_EQUAL, pid, 0, 1)]
        steps += [allow, refuse]
    # `kill` with signal 0 only asks whether a process exists.
    steps += [_step(_IF_EQUAL, machine.kill, 0, 6), _step(_LOAD, _AT_SECOND), _step(_IF_EQUAL, 0, 2, 0)]
    steps += [_step(_LOAD, _AT_FIRST), _step(_IF_EQUAL, pid, 0, 1), allow, refuse]
    return [*steps, allow]


def _step(operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, operand)
