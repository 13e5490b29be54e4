"""Data-parallel training as rank 0 sees it: without peers, but with the gradient buckets.

Collectives return at once with their input unchanged. DistributedDataParallel is replaced by a module
that allocates the buckets of its reducer. Sharded training is not supported.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.fake.devices import at_user_line
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.core.errors import BadInput, CannotFake
from pinchpoint.core.units import MIB

_FIRST_BUCKET_BYTES = MIB
_COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "barrier",
    "all_gather",
    "all_gather_into_tensor",
    "reduce",
    "reduce_scatter",
    "scatter",
    "gather",
    "all_to_all",
    "all_to_all_single",
    "broadcast_object_list",
    "monitored_barrier",
    "destroy_process_group",
    "send",
    "recv",
)


class _FinishedWork:
    """The handle of a collective that has finished."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class _FinishedProcesses:
    """What `torch.multiprocessing.spawn` returns with join=False."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True


def install(patches: Patches, ledger: Ledger) -> None:
    _spawning(patches, ledger)
    if not torch.distributed.is_available():
        return
    import torch.distributed as dist

    state = {"size": 0}  # 0 before the process group starts

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        ranks = int(kwargs.get("world_size") or -1)
        if ranks < 1:
            ranks = int(os.environ.get("WORLD_SIZE", "0"))
        if ranks < 1:
            raise BadInput(
                f"The script starts a process group{at_user_line()}, whose size is not given.",
                hint="Add --world-size N to predict it as rank 0 of N processes.",
            )
        state["size"] = ranks
        note = f"rank 0 of {ranks}, without peers"
        if note not in ledger.observation.notes:
            ledger.observation.notes.append(note)

    patches.set(dist, "init_process_group", init_process_group)
    patches.set(dist, "is_initialized", lambda: state["size"] > 0)
    patches.set(dist, "get_rank", lambda group=None: 0)
    patches.set(dist, "get_world_size", lambda group=None: state["size"] or 1)
    patches.set(dist, "get_backend", lambda group=None: "nccl")
    patches.set(dist, "is_nccl_available", lambda: True)
    patches.set(dist, "new_group", lambda *_, **__: None)
    for name in _COLLECTIVES:
        patches.set(dist, name, lambda *_, **__: _FinishedWork())
    patches.set(torch.nn.parallel, "DistributedDataParallel", _parallel_type(ledger))
    for module, name in _fsdp_classes():
        patches.set(module, name, _RefusedSharding)


def _spawning(patches: Patches, ledger: Ledger) -> None:
    """`torch.multiprocessing.spawn` runs the first of its processes, in this one."""
    import torch.multiprocessing as multiprocessing

    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        *_: Any,
        **__: Any,
    ) -> _FinishedProcesses | None:
        if nprocs > 1:
            ledger.observation.notes.append(f"the first of {nprocs} spawned processes is predicted")
        fn(0, *args)
        return None if join else _FinishedProcesses()

    for owner in (multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.set(owner, "spawn", spawn)
        patches.set(owner, "start_processes", spawn)


def _parallel_type(ledger: Ledger) -> type[torch.nn.Module]:
    class DistributedDataParallel(torch.nn.Module):
        """Runs the wrapped module and keeps the reducer's buckets allocated."""

        def __init__(
            self,
            module: torch.nn.Module,
            *_: Any,
            bucket_cap_mb: float | None = None,
            gradient_as_bucket_view: bool = False,
            **__: Any,
        ) -> None:
            super().__init__()
            self.module = module
            self.require_backward_grad_sync = True
            self._buckets: list[torch.Tensor] = []
            if not gradient_as_bucket_view:
                parameters = [p for p in module.parameters() if p.requires_grad]
                self._buckets = _buckets(parameters, int((bucket_cap_mb or 25) * MIB))
            for bucket in self._buckets:
                ledger.set_role(bucket, "gradients")

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            yield

        def register_comm_hook(self, state: Any, hook: Any) -> None:
            return None

    return DistributedDataParallel


def _buckets(parameters: list[torch.nn.Parameter], cap_bytes: int) -> list[torch.Tensor]:
    """Flat buffers in the reducer's order, last parameters first; the first bucket is small."""
    buckets: list[torch.Tensor] = []
    limit, count, dtype = _FIRST_BUCKET_BYTES, 0, None
    for parameter in reversed(parameters):
        if count and (count * parameter.element_size() >= limit or parameter.dtype != dtype):
            buckets.append(torch.empty(count, dtype=dtype, device=parameters[0].device))
            limit, count = cap_bytes, 0
        dtype = parameter.dtype
        count += parameter.numel()
    if count:
        buckets.append(torch.empty(count, dtype=dtype, device=parameters[0].device))
    return buckets


def _fsdp_classes() -> list[tuple[Any, str]]:
    import torch.distributed.fsdp as fsdp

    return [(fsdp, name) for name in ("FullyShardedDataParallel", "fully_shard") if hasattr(fsdp, name)]


class _RefusedSharding:
    """A class rather than a function, because libraries use the original in annotations."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise CannotFake(
            f"The script shards its parameters over several GPUs with FSDP{at_user_line()}, "
            "which pinchpoint does not support yet.",
            hint="Predict it unsharded on one GPU, or with DistributedDataParallel.",
        )
