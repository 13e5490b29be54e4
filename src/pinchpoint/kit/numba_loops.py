"""Optional CPU loops compiled by numba, imported late; every result can also be computed without them.

Compiled functions release the GIL and start no threads, because numba's own thread pools abort the process
after a fork, or if two threads use them at the same time.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def numba_works() -> bool:
    """Whether numba is installed and accepts the installed NumPy."""
    try:
        import_module("numba")
    except ImportError:
        return False
    return True


def compile_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the function at its first call, and cache it on disk if numba finds a writable folder."""
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable folder: each process compiles it again
        return numba.njit(nogil=True)(function)
