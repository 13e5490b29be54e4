"""Limits on the run of a script with real values, which counts what depends on its data."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pinchpoint.backends.sandbox.run_script import Stopper

_REAL_RUN_S = 120.0  # of CPU time
_REAL_RUN_MEMORY = 0.6  # share of the host's free memory


def limit_real_run(stopper: Stopper) -> None:
    """Stop the script once it has used its CPU time or most of the free memory; its counts are kept."""
    import resource

    def used_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    end_s = used_s() + _REAL_RUN_S
    most_bytes = _resident_bytes() + _REAL_RUN_MEMORY * _free_bytes()

    def check(*_: Any) -> None:
        if used_s() > end_s or _resident_bytes() > most_bytes:
            signal.setitimer(signal.ITIMER_PROF, 5, 5)  # time to clean up; again if the script goes on
            stopper.steps = stopper.limit
            stopper.raise_if_done()

    signal.signal(signal.SIGPROF, check)
    signal.setitimer(signal.ITIMER_PROF, 0.25, 0.25)
    # If it cannot be stopped from inside, the system ends it.
    limit = int(used_s() + 2 * _REAL_RUN_S)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))


def _resident_bytes() -> float:
    """The memory of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _free_bytes() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), 0)
