"""Memory of this machine and of this process.

Free memory is what the system calls available, limited by the process's control group.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from functools import cache
from pathlib import Path

_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_RETURNED_BYTES = 2**20


def free_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping. root: the folder that holds /proc and /sys, for tests."""
    limits = [available_bytes(root)]
    for limit, usage in _GROUPS:
        most, now = _number(root / limit[1:]), _number(root / usage[1:])
        if most is not None and now is not None:
            limits.append(max(0, most - now))
    return min(limits)


def resident_bytes() -> int:
    """Return the resident bytes of this process, or their peak if the system does not report them."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the most resident bytes that this process has had."""
    try:
        # getrusage also counts the process that started this one, as it was before the program was loaded.
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@cache
def return_freed_memory() -> bool:
    """Let malloc give blocks of a mebibyte and more back to the system when they are freed, in this process.

    By default glibc keeps ever larger ones, up to 32 MiB, for later: in training, a process may then hold
    more than twice as much as its tensors. Returns whether malloc has this setting; only that of glibc does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # 1 is success. The second setting returns the end of the heap, too.
    return all(mallopt(name, _RETURNED_BYTES) == 1 for name in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD))


def available_bytes(root: Path = Path("/")) -> int:
    """What the system calls available, whatever the limit of the control group."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        # No /proc, as on macOS: half of the installed memory is a cautious guess.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024


def _number(path: Path) -> int | None:
    """A limit, or None where the group is unlimited (`max`) or does not exist."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
