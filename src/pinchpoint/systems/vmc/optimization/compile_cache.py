"""A cache of compiled programs on disk, which makes the second start of a run fast.

Enabled by commands, never on import.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import jax

from pinchpoint.core.files import make_folder

LEAST_S = 0.3  # programs that compile in less time are not stored


def use_compile_cache(folder: Path | None = None) -> Path:
    """Make JAX store compiled programs in a folder.

    By default it is in the user's cache, with one folder per kind of processor: a program compiled for one
    processor may crash on another that reads it from a shared home folder.
    """
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = Path(home) / "pinchpoint" / "jax" / _processor()
    make_folder(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_S)
    return folder


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    details = sorted(
        {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    )
    text = "\n".join([platform.machine(), platform.processor(), *details])
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
