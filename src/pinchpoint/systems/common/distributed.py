"""The processes that train together, as torchrun starts them; one alone where it did not.

The first of them leads: it keeps the run's folder, looks at what is held back, and says before each step whether there is
one more. The others follow, and their signals are left to it. What is said goes over the CPU and waits for no GPU.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pinchpoint.core.errors import BadInput

ENDED, NEXT, FAILED = 0, 1, 2


@dataclass(frozen=True)
class Ranks:
    """Process number `rank` of `world`."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def wrapped(self, module: nn.Module, device: str) -> nn.Module:
        """The module itself, or in DDP, which averages gradients in the backward pass."""
        if self.world == 1:
            return module
        return DistributedDataParallel(
            module, device_ids=[torch.cuda.current_device()] if device == "cuda" else None
        )

    def unsynchronised(self, module: nn.Module, *, when: bool) -> AbstractContextManager[object]:
        """Within, gradients are added and not averaged yet: there are more backward passes in the step."""
        return module.no_sync() if when and isinstance(module, DistributedDataParallel) else nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        """Of the values of all, on the device."""
        if self.world == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.world

    def agreed(self, word: int = 0) -> int:
        """What the leader says: every process must ask."""
        if self.world == 1:
            return word
        said = torch.tensor([word], dtype=torch.int64)
        dist.broadcast(said, 0)
        return int(said)


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Within, this process is one of torchrun's. Outside of it, or where it started one alone, a process by itself."""
    world = _number("WORLD_SIZE", 1)
    if world == 1:
        yield Ranks()
        return
    local: Any = _number("LOCAL_RANK", 0)
    if device == "cuda":
        if local >= torch.cuda.device_count():
            raise BadInput(
                f"process {local} of this machine has no GPU: there are {torch.cuda.device_count()}",
                hint="give torchrun --nproc-per-node no more than there are GPUs",
            )
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        # Left only when the process ends: a second group of the same processes may wait for ever for one that left late.
        atexit.register(_leave)
    yield Ranks(dist.get_rank(), dist.get_world_size())


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit():
        raise BadInput(
            f"{name}={text} in the environment", hint="start with torchrun, which sets it, or unset it"
        )
    return int(text)
