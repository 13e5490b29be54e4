"""Measurement of PyTorch steps on this machine's device: implements `backends.base.Backend`.

On CUDA the peaks are torch's own counters. On a CPU torch keeps none, so `account` intercepts every
operation and counts the live storages. It counts tensors, not the scratch memory inside kernels, and
it slows the run down, so it is never used while a clock runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pinchpoint.backends.base import Peaks
from pinchpoint.backends.torch.compat import DispatchMode, sparse_parts
from pinchpoint.core.errors import BadInput, Missing

_OOM_TEXTS = (
    "out of memory",
    "not enough memory",  # the CPU allocator
    "can't allocate memory",  # the CPU allocator on Linux
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def has_cuda() -> bool:
    return torch.cuda.is_available()


def seed(seed: int) -> None:
    torch.manual_seed(seed)


def wait(device: str, result: Any = None) -> None:
    """Wait for all work on CUDA, whatever `result` is; on a CPU there is nothing to wait for."""
    if device == "cuda":
        torch.cuda.synchronize()


def wait_stream(device: str) -> None:
    """Wait for CUDA's current stream only, not for what other streams prepare for later."""
    if device == "cuda":
        torch.cuda.current_stream().synchronize()


def reset_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peaks(device: str) -> Peaks:
    """Peaks since the start or `reset_peak`; unknown on a CPU, where `account` counts instead."""
    if device != "cuda":
        return Peaks(None)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return Peaks(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free)


def cap(budget_bytes: int) -> None:
    """Limit torch's allocator to the budget; the CUDA context is not included in it."""
    if not has_cuda():
        raise Missing(
            "No CUDA device is available on this machine.",
            hint="Run on a machine with a GPU, or use --on fake.",
        )
    total = torch.cuda.mem_get_info()[1]
    if budget_bytes > total:
        raise BadInput(
            f"The budget of {budget_bytes:,} B is larger than this GPU's memory of {total:,} B.",
            hint="Choose a smaller card, or use --on fake.",
        )
    torch.cuda.set_per_process_memory_fraction(budget_bytes / total)


def device_seconds(run: Callable[[], Any], *, replays: int = 50) -> float:
    """Seconds of GPU time of one run: the mean over replays of its CUDA graph, without the host's time.

    `run` must not synchronise with the device.
    """
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(2):  # the first run allocates what must not be part of the graph
            run()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / replays


def is_oom(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OOM_TEXTS)


def to_numpy(value: Any) -> Any:
    """A tensor as a numpy array; bfloat16, which numpy lacks, becomes float32."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def account(run: Callable[[], Any]) -> int | None:
    """Most bytes of CPU tensors alive at one instant during `run()`.

    Tensors created earlier count from their first use, so let `run` take two steps, or build as well.
    """
    ledger = _Ledger()
    with ledger:
        run()
    return ledger.peak_bytes


class _Ledger(DispatchMode):
    """Live CPU storages, by identity: views share one, and it is removed when torch frees it."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.live_bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Inputs first: tensors created before the ledger was opened are alive while the result is computed.
        self._enter((args, kwargs))
        result = func(*args, **kwargs)
        self._enter(result)
        return result

    def _enter(self, value: Any) -> None:
        for tensor in _tensors(value):
            if tensor.device.type != "cpu":
                continue
            storage = tensor.untyped_storage()
            key, size = id(storage), storage.nbytes()
            if key not in self.live:
                self.live[key] = 0
                weakref.finalize(storage, self._leave, key).atexit = False
            # A storage may be resized in place, so its size is read every time.
            self.live_bytes += size - self.live[key]
            self.live[key] = size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _leave(self, key: int) -> None:
        self.live_bytes -= self.live.pop(key)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every dense tensor inside the arguments or results of an operation."""
    if isinstance(value, torch.Tensor):
        if value.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (value.crow_indices(), value.col_indices(), value.values())
        elif value.layout == torch.sparse_coo:
            yield from sparse_parts(value)
        elif value.layout == torch.strided:
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
