"""Processes that train together, as torchrun starts them; a single process otherwise.

The first process leads: it writes the run's folder, validates, and announces before each step whether there
is one more. The others follow and leave signals to it. Announcements go over the CPU and wait for no GPU.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.systems.common.processes import environment_number
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.common.training.runs import RECORD
from pinchpoint.systems.common.training.stopping import stop_between_steps

ENDED, NEXT, FAILED = 0, 1, 2  # the words of the leader
Result = TypeVar("Result")


@dataclass(frozen=True)
class Ranks:
    """Process number `rank` of `world`."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module, device: str) -> nn.Module:
        """The module itself, or wrapped in DDP, which averages gradients in the backward pass."""
        if self.world == 1:
            return module
        return DistributedDataParallel(
            module, device_ids=[torch.cuda.current_device()] if device == "cuda" else None
        )

    def unsynchronised(self, module: nn.Module, *, when: bool) -> AbstractContextManager[object]:
        """Within the block gradients are summed but not averaged: more backward passes of the step follow."""
        return module.no_sync() if when and isinstance(module, DistributedDataParallel) else nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        """The mean of the values of all processes, on the device."""
        if self.world == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.world

    def agree(self, word: int = 0) -> int:
        """The word of the leader; every process must call this."""
        if self.world == 1:
            return word
        shared = torch.tensor([word], dtype=torch.int64)
        dist.broadcast(shared, 0)
        return int(shared)

    def check_first(self, check: Callable[[], object]) -> None:
        """Call `check` in the first process; the others wait, and fail if it fails. All must call this."""
        word = FAILED
        try:
            if self.leads:
                check()
                word = NEXT
        finally:
            word = self.agree(word)
        if word == FAILED:
            raise _first_failed()


@contextmanager
def join_ranks(device: str) -> Iterator[Ranks]:
    """Within the block this process belongs to torchrun's group; a process that is alone needs no group."""
    world = environment_number("WORLD_SIZE", 1)
    if world == 1:
        yield Ranks()
        return
    local: Any = environment_number("LOCAL_RANK", 0)
    if device == "cuda":
        if local >= torch.cuda.device_count():
            raise BadInput(
                f"Process {local} of this machine has no GPU: there are only {torch.cuda.device_count()}.",
                hint="Give torchrun --nproc-per-node at most the number of GPUs.",
            )
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        # Left only when the process ends: a second group of the same processes could wait forever for one
        # that leaves late.
        atexit.register(_leave)
    yield Ranks(dist.get_rank(), dist.get_world_size())


def lead(ranks: Ranks, take_steps: Callable[[], Result]) -> Result:
    """Take the steps, and announce to the following processes when there are no more."""
    word = FAILED
    try:
        result = take_steps()
        word = ENDED
    except (KeyboardInterrupt, SystemExit):
        word = ENDED
        raise
    finally:
        ranks.agree(word)
    return result


def follow(
    run: Any, ranks: Ranks, *, restore: Callable[[dict[str, Any]], None], take: Callable[[int], object]
) -> str:
    """Take the same steps as the first process, from the run's last checkpoint on; returns the text of its
    record.

    run: a `common.training.runs.Run`; take: takes step 1, 2, ... of this process.
    """
    state = run.resumed_state()
    if state is not None:
        restore(state)
    number = 0 if state is None else state["step"]
    with matmuls(run.settings.precision), stop_between_steps():  # only the first process acts on signals
        while (word := ranks.agree()) == NEXT:
            number += 1
            take(number)
    path: Path = run.folder / RECORD
    if word == FAILED or not path.exists():
        raise _first_failed()
    return path.read_text(encoding="utf-8")


def _first_failed() -> TargetFailed:
    return TargetFailed("The first process failed.", hint="See the error that it printed.")


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
