"""Work recorded as CUDA graphs: launching hundreds of small kernels costs more than the kernels themselves.

A function is first run eagerly on a side stream (`run_aside`), where libraries set up what must not be
recorded, and then recorded (`record`). It must read only tensors that stay in place, copy nothing from the
host, wait for nothing, and find no gradients on the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Recording:
    """A recorded function and its result, which every replay overwrites."""

    graph: Any  # torch.cuda.CUDAGraph
    result: Tensor

    def replay(self) -> Tensor:
        """Run the function again. Returns a copy of its result."""
        self.graph.replay()
        return self.result.clone()


def run_aside(function: Callable[[], Tensor]) -> Tensor:
    """Return function(), run on another stream than the current one."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = function()
    torch.cuda.current_stream().wait_stream(side)
    return result


def record(
    function: Callable[[], Tensor], *, clear: Callable[[], None], pool: Any = None
) -> tuple[Recording, Any]:
    """Record a function without running it. Returns the recording and its pool of memory.

    clear: frees what an eager call left and a recorded one must allocate. pool: of another recording that
    never runs at the same time, so that both can use the same memory.
    """
    clear()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = function()
    return Recording(graph, result), graph.pool()
