"""A stand-in for a GPU that records steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pinchpoint.systems.common.training import recording


class RecordingCard:
    """The memory of a GPU, and stand-ins for what records on it, which list their calls.

    graph: by how much each recording makes the memory in which recordings compute grow; other numbers are
    taken from `taken`, one for each, as long as it has any. step: what eager steps leave unused. is_aside:
    whether a function runs with the memory of eager steps.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, *, free: int, step: int, graph: int = 1000, taken: Sequence[int] = ()
    ) -> None:
        self.calls: list[str] = []
        self.notes: list[str] = []
        self.error: RuntimeError | None = None  # that the next recording raises
        self.free, self.step, self.graph, self.taken = free, step, graph, list(taken)
        self.is_aside = False
        self.pools: dict[str, int] = {}  # the bytes of each
        patch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        patch.setattr(torch.cuda, "mem_get_info", lambda: (self.free, 10 * free))
        patch.setattr(recording.SideStream, "unused_bytes", lambda stream: self.step)
        patch.setattr(recording.SideStream, "run", self.run_aside)
        patch.setattr(recording, "record", self.record)
        patch.setattr(recording, "pool_bytes", lambda pools: sum(self.pools[name] for name in pools))
        patch.setattr(recording, "release_memory", lambda: self.calls.append("released"))

    def run_aside(self, function: Callable[[], torch.Tensor]) -> torch.Tensor:
        self.calls.append("aside")
        self.is_aside = True
        try:
            return function()
        finally:
            self.is_aside = False

    def record(self, function: Callable[[], torch.Tensor], *, clear: Callable[[], None], pool: Any) -> Any:
        clear()
        if self.error is not None:
            raise self.error
        self.calls.append("recorded" if pool is None else f"recorded in {pool}")
        if pool is None:
            # Memory is released before a recording, with that of pools that have none any more.
            self.pools = dict.fromkeys(self.pools, 0)
            pool = f"pool {len(self.pools) + 1}" if self.pools else "the pool"
        self.pools[pool] = self.pools.get(pool, 0) + (self.taken.pop(0) if self.taken else self.graph)
        replay = lambda: self.calls.append("replayed") or function()  # noqa: E731
        return SimpleNamespace(replay=replay, graph_bytes=0), pool
