"""Real torch: waiting, peaks, caps and out-of-memory errors, and an account of CPU tensors.

On CUDA the peaks are torch's own counters. On CPU torch keeps none, so `account` watches every
operation and counts the storages alive; it sees tensors, not the scratch memory inside kernels,
and slows the run, so it is never used while a clock runs.
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
    """Torch on CPU is never ahead; CUDA is awaited as a whole, whatever `result` is."""
    if device == "cuda":
        torch.cuda.synchronize()


def wait_stream(device: str) -> None:
    """CUDA's current stream alone is awaited: what other streams make ready for later is none of its time."""
    if device == "cuda":
        torch.cuda.current_stream().synchronize()


def reset_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peaks(device: str) -> Peaks:
    """Peaks since the start or `reset_peak`; on CPU nothing is known without `account`."""
    if device != "cuda":
        return Peaks(None)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return Peaks(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free)


def cap(budget_bytes: int) -> None:
    """Let torch's allocator reserve no more than the budget; the context comes on top."""
    if not has_cuda():
        raise Missing("no CUDA device is visible here", hint="run where there is a GPU, or use --on fake")
    total = torch.cuda.mem_get_info()[1]
    if budget_bytes > total:
        raise BadInput(
            f"a cap of {budget_bytes:,} B is more than this GPU's {total:,} B",
            hint="use a smaller card, or --on fake",
        )
    torch.cuda.set_per_process_memory_fraction(budget_bytes / total)


def device_seconds(run: Callable[[], Any], *, replays: int = 50) -> float:
    """Seconds that one run keeps the GPU: a graph of it, replayed, with no host between its kernels. It may wait for nothing."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):  # what is made at a first run is no part of a graph
            run()
    torch.cuda.current_stream().wait_stream(aside)
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
    """A tensor as an array; bfloat16, which numpy lacks, as float32."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def account(run: Callable[[], Any]) -> int | None:
    """Most bytes of CPU tensors alive at once while `run` runs.

    Tensors made before count from their first use: let `run` take two steps, or build as well.
    """
    ledger = _Ledger()
    with ledger:
        run()
    return ledger.peak_bytes


class _Ledger(DispatchMode):
    """Live CPU storages, by identity: views share one, and it is struck off when it really dies."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.live_bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Inputs first: what was made before the ledger opened is alive while the result is made.
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
            # A storage may be resized in place, so its size is read at every sight.
            self.live_bytes += size - self.live[key]
            self.live[key] = size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _leave(self, key: int) -> None:
        self.live_bytes -= self.live.pop(key)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every dense tensor inside what an operation took or gave."""
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
