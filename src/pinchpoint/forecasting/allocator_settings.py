"""Environment settings of torch's allocator and of cuBLAS that a forecast models."""

from __future__ import annotations

import os
import re

from pinchpoint.backends.torch import versions

_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # older versions of torch read only the first


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
    variables = _VARIABLES if versions.rules().reads_alloc_conf else _VARIABLES[:1]
    text = next((os.environ[name] for name in variables if os.environ.get(name)), "")
    return dict(pair for part in text.split(",") if len(pair := tuple(part.strip().split(":", 1))) == 2)
