"""`ProcessMemory`: the resident memory of this process, for runs without a GPU.

It includes Python, libraries, and memory that was freed but not returned to the system.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any


class ProcessMemory:
    """Reads what the system says about this process; None where it does not say it."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self._page = os.sysconf("SC_PAGE_SIZE")

    def resident_bytes(self) -> int | None:
        if self._file < 0:
            return None
        return int(os.pread(self._file, 200, 0).split()[1]) * self._page

    def report(self) -> dict[str, Any]:
        """The part of a Trace about memory."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            "method": "resident memory of the process",
            "allocated_bytes": None,
            "reserved_bytes": None,
            "process_bytes": peak * (1 if sys.platform == "darwin" else 1024),
            "per_step_is": "resident memory of the process at the end of each step",
            "lines": [],
        }
