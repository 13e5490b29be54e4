"""A fake run: pretend there is a CUDA device, run the user's step on it, return what it allocated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from pinchpoint.backends.torch import (
    attention,
    autocast,
    distributed,
    pretend_cuda,
    pretend_library,
    pretend_tensor,
    recurrent,
)
from pinchpoint.backends.torch.dynamic import Dynamic
from pinchpoint.backends.torch.kernels import KernelModel
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.patches import Patches


@dataclass(frozen=True)
class Device:
    """What the fake run must know of the card it pretends to have."""

    title: str
    memory_bytes: int
    capability: tuple[int, int]
    cublas_workspace_bytes: int
    cublaslt_workspace_bytes: int
    processors: int


@contextlib.contextmanager
def pretending(device: Device, *, dynamic: Dynamic, progress: pretend_library.Progress | None = None) -> Iterator[Observer]:
    """Everything inside runs as if `device` were cuda:0. Only for a process of its own."""
    ledger = Ledger()
    model = KernelModel(device.cublas_workspace_bytes, device.cublaslt_workspace_bytes, device.processors, device.capability)
    progress = progress or pretend_library.Progress()
    observer = Observer(ledger, model, dynamic)
    observer.progress = progress
    with Patches() as patches:
        pretend_cuda.install(
            patches, observer, memory_bytes=device.memory_bytes, capability=device.capability, title=device.title
        )
        pretend_tensor.install(patches, observer)
        attention.install(patches, observer, capability=device.capability)
        recurrent.install(patches, observer)
        _dropout(patches, observer)
        _fused(patches, observer)
        distributed.install(patches, ledger)
        library = autocast.install(patches)
        try:
            with pretend_library.installed(patches, ledger, progress), observer:
                yield observer
        finally:
            library._destroy()


def _fused(patches: Patches, observer: Observer) -> None:
    """CUDA has one kernel for RMS norm where the host composes it."""
    original = F.rms_norm

    def rms_norm(
        input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        if not observer.on_device(input) or not hasattr(torch.ops.aten, "_fused_rms_norm"):
            return original(input, normalized_shape, weight, eps)
        if torch.is_autocast_enabled("cpu"):
            input = input.float()
        return torch.ops.aten._fused_rms_norm(input, list(normalized_shape), weight, eps)[0]

    patches.set(F, "rms_norm", rms_norm)


def _dropout(patches: Patches, observer: Observer) -> None:
    """CUDA's fused dropout keeps a one-byte mask; the host's composition keeps a float one."""
    original = F.dropout

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not observer.on_device(input) or inplace or not training or p in (0.0, 1.0):
            return original(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    patches.set(F, "dropout", dropout)
    original_torch = torch.dropout
    patches.set(torch, "dropout", lambda input, p, train: dropout(input, p, train) if train else original_torch(input, p, train))
