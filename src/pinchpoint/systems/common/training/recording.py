"""Work recorded as CUDA graphs: launching hundreds of small kernels costs more than the kernels themselves.

A function is first run eagerly on a side stream (`SideStream`), where libraries set up what must not be
recorded, and then recorded (`record`). It must read only tensors that stay in place, copy nothing from the
host, wait for nothing, and find no gradients on the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from pinchpoint.backends.torch.compat import end_failed_capture

Result = TypeVar("Result")


@dataclass(frozen=True)
class Recording:
    """A recorded function and its result, which every replay overwrites."""

    graph: Any  # torch.cuda.CUDAGraph
    result: Tensor
    graph_bytes: int  # of the device, besides the pool of memory; less or more if other processes use it

    def replay(self) -> Tensor:
        """Run the function again. Returns a copy of its result."""
        self.graph.replay()
        return self.result.clone()


class SideStream:
    """Runs functions on another stream than the current one.

    It is always the same stream, because the caching allocator keeps the memory of every stream apart.
    """

    def __init__(self) -> None:
        self._stream: Any = None

    def run(self, function: Callable[[], Result]) -> Result:
        """Return function()."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = function()
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def unused_bytes(self) -> int:
        """What the caching allocator holds for the stream and no tensor uses: what functions allocated."""
        if self._stream is None:
            return 0
        return sum(
            segment["total_size"] - segment["allocated_size"]
            for segment in torch.cuda.memory_snapshot()
            if segment["stream"] == self._stream.cuda_stream and tuple(segment["segment_pool_id"]) == (0, 0)
        )


def record(
    function: Callable[[], Tensor], *, clear: Callable[[], None], pool: Any = None
) -> tuple[Recording, Any]:
    """Record a function without running it. Returns the recording and its pool of memory.

    clear: frees what an eager call left and a recorded one must allocate. pool: of another recording that
    never runs at the same time, so that both can use the same memory. Of what a replay allocates, only
    `result` outlives it, and it is cloned at once: the next replay of any recording of the pool may
    overwrite it.
    """
    clear()
    release_memory()  # as the capture does, which would hide what the graph takes
    free_bytes, _ = torch.cuda.mem_get_info()
    reserved_bytes = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with recording_into(graph, pool=pool):
        result = function()
    # Another thread may have reserved memory meanwhile, as the pool did: neither is the graph's.
    grown_bytes = torch.cuda.memory_reserved() - reserved_bytes
    graph_bytes = max(free_bytes - torch.cuda.mem_get_info()[0] - grown_bytes, 0)
    return Recording(graph, result, graph_bytes), graph.pool()


def pool_bytes(pools: Sequence[Any]) -> int:
    """The bytes that the caching allocator holds for some pools of memory of recordings."""
    own = {tuple(pool) for pool in pools}
    segments = torch.cuda.memory_snapshot()
    return sum(one["total_size"] for one in segments if tuple(one["segment_pool_id"]) in own)


@contextmanager
def recording_into(graph: Any, *, pool: Any = None, stream: Any = None) -> Iterator[None]:
    """Record what this thread does into a graph; if that fails, leave the process as it was.

    Only what this thread does must be recordable: another one may copy the next data to the device, or query
    it, as NCCL's watchdog constantly does. After a recording that fails, its pool takes no other one.
    """
    pool = torch.cuda.graph_pool_handle() if pool is None else pool  # known even if the recording fails
    # A recording that fails stays on its stream; this one is left again.
    has_begun = False
    with torch.cuda.stream(torch.cuda.current_stream()):
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                has_begun = True
                yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            end_failed_capture(graph, pool, has_begun=has_begun)
            _repair_generator()
            raise


def _repair_generator() -> None:
    """Make random numbers available again after a recording that failed.

    Such a recording leaves the device's generator in the state of one that is being recorded, in which
    neither numbers can be drawn nor earlier recordings be replayed. It leaves that state at the end of the
    next recording, so a tiny one is made. Later versions than torch 2.11 have a state for each recording and
    need no repair.
    """
    number = torch.zeros((), device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        number.zero_()  # an empty recording would be warned of


def release_memory() -> None:
    """Return memory that nothing uses to the device, with that of recordings that no longer exist."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
