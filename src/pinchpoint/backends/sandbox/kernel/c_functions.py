"""`check_lookup`: refuses functions of the C library that `ctypes` would call past the sandbox.

`ctypes.CDLL(None).unlink` has no audit event of its own, but looking the function up has. The kernel refuses
most of these calls as well, but not on every system, and with less of an explanation.
"""

from __future__ import annotations

import errno
import os
from typing import Any

_STARTS_OR_ENDS_PROCESSES = (
    "system popen fork vfork _Fork forkpty daemon clone execl execle execlp execv execve execvp execvpe "
    "execveat fexecve posix_spawn posix_spawnp kill killpg tgkill sigqueue pidfd_send_signal ptrace"
)
_CHANGES_FILES = (
    "unlink unlinkat remove rename renameat renameat2 rmdir mkdir mkdirat mknod mknodat mkfifo mkfifoat link "
    "linkat symlink symlinkat truncate truncate64 creat creat64 chmod fchmod fchmodat lchmod chown fchown "
    "fchownat lchown utime utimes lutimes futimes futimesat futimens utimensat setxattr lsetxattr fsetxattr "
    "removexattr lremovexattr fremovexattr shm_open shm_unlink sem_unlink mq_unlink"
)
_REFUSED = frozenset(f"{_STARTS_OR_ENDS_PROCESSES} {_CHANGES_FILES}".split())
_LIBRARIES = ("libc.", "libc-", "libpthread", "librt", "libSystem")


class RefusedCall(PermissionError):
    """A function of the C library that was not looked up."""

    def __init__(self, name: str) -> None:
        super().__init__(
            errno.EPERM, f"pinchpoint prevents a predicted script from calling {name} of the C library", name
        )


def check_lookup(library: Any, name: Any) -> None:
    """For the audit events `ctypes.dlsym` (a library) and `ctypes.dlsym/handle` (its handle)."""
    path = getattr(library, "_name", None)
    # A library of the user may have a function with such a name.
    is_system = not path or os.path.basename(str(path)).startswith(_LIBRARIES)
    if is_system and name in _REFUSED:
        raise RefusedCall(name)
