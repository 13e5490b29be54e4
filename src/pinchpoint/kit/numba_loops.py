"""Loops for a CPU compiled by numba, where it is installed; imported late, and never needed for an answer.

Compiled functions hold no lock of Python's and start no threads: numba's own pools end the process after a fork, or where
two threads use them at the same time.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def numba_works() -> bool:
    """Is it there, and does it take the numpy that is?"""
    try:
        import_module("numba")
    except ImportError:
        return False
    return True


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled at its first call, and kept on disk where numba finds a folder it may write to."""
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no such folder: compiled anew by each process
        return numba.njit(nogil=True)(function)
