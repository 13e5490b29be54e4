"""Memory of this machine that a process may still take: what the system calls available, within its control group."""

from __future__ import annotations

import os
from pathlib import Path

_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be taken without pushing anything out. root: where /proc and /sys are, for tests."""
    found = [_available(root)]
    for limit, used in _GROUPS:
        most, now = _number(root / limit[1:]), _number(root / used[1:])
        if most is not None and now is not None:
            found.append(max(0, most - now))
    return min(found)


def _available(root: Path) -> int:
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        # No /proc, as on macOS: half of what is built in is a careful guess.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024


def _number(path: Path) -> int | None:
    """A limit; None where there is none (`max`) or no such group."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
