"""Environment settings of torch's allocator and of cuBLAS that a forecast models."""

from __future__ import annotations

import os
import re

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first is the newer name


def expandable_segments() -> bool:
    return _allocator().get("expandable_segments", "").lower() == "true"


def notes() -> tuple[str, ...]:
    """Notes about settings that change the reserved bytes but are not modelled."""
    other = sorted(set(_allocator()) - {"expandable_segments"})
    return (f"allocator settings that are not modelled: {', '.join(other)}",) if other else ()


def cublas_workspace_bytes(usual: int) -> int:
    """Workspace of a cuBLAS handle: `CUBLAS_WORKSPACE_CONFIG` (:KIB:COUNT pairs), or the card's default."""
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(size) * int(count) for size, count in pairs) * 1024 if pairs else usual


def _allocator() -> dict[str, str]:
    text = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")
    return dict(pair for part in text.split(",") if len(pair := tuple(part.strip().split(":", 1))) == 2)
