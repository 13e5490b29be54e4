"""Shared memory of a script stays its own: other processes' segments are copied, and never removed.

`multiprocessing.shared_memory` opens and unlinks segments by name in C. Here a segment is a file of the
overlay below /dev/shm: a new one is created in the scratch folder, and one of another process is copied there
before the script can change it. The process that Python starts to remove forgotten segments is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import resource_tracker
from typing import Any

from pinchpoint.backends.patches import Patches

_FOLDER = "/dev/shm/"


def install(patches: Patches, open_file: Callable[..., int], unlink: Callable[..., None]) -> None:
    """open_file, unlink: those of the overlay."""
    for name in ("ensure_running", "_send"):
        patches.set(resource_tracker.ResourceTracker, name, lambda *args: None)
    try:
        import _posixshmem  # pyright: ignore[reportMissingImports]
    except ImportError:  # Python was built without shared memory: there is nothing to redirect
        return
    if not os.path.isdir(_FOLDER):  # macOS has no files for shared memory
        return

    def shm_open(path: Any, flags: int, mode: int = 0o777) -> int:
        return open_file(_FOLDER + path.lstrip("/"), flags, mode)

    def shm_unlink(path: Any) -> None:
        unlink(_FOLDER + path.lstrip("/"))

    patches.set(_posixshmem, "shm_open", shm_open)
    patches.set(_posixshmem, "shm_unlink", shm_unlink)
