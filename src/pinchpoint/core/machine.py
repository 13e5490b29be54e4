"""A description of the machine that made a record: enough to interpret a number a year later.

Only frameworks that are already imported are described; nothing is imported here.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any


def describe() -> dict[str, Any]:
    """Platform, Python, GPU, and the installed versions of pinchpoint and the frameworks."""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {
            name: version for name in ("pinchpoint", "torch", "jax", "numpy") if (version := _version(name))
        },
        "gpu": _gpu_name(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu_name() -> str | None:
    torch, jax = (sys.modules.get(name) for name in ("torch", "jax"))
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if jax is None:
        return None
    first = jax.local_devices()[0]
    return first.device_kind if first.platform == "gpu" else None
