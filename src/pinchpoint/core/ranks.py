"""`Rank`: one process of a parallel job, and the variables that torchrun sets for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pinchpoint.core.errors import BadInput
from pinchpoint.core.events import Span
from pinchpoint.core.units import MIB

GPUS_PER_NODE = 8  # assumed unless --local-world-size says otherwise
# Guessed, not measured, from NCCL's defaults. Every channel has buffers for three protocols (about 10 MiB)
# per connection; few channels over PCIe, 16 to 32 with up to three connections over NVLink.
_CHANNEL_BYTES = 10 * MIB
NCCL_PER_COMMUNICATOR = Span(usual=16 * _CHANNEL_BYTES, least=2 * _CHANNEL_BYTES, most=64 * _CHANNEL_BYTES)


@dataclass(frozen=True)
class Rank:
    """Process `rank` of `world_size`, of which `local_world_size` run on each machine."""

    rank: int
    world_size: int
    local_world_size: int

    @property
    def local_rank(self) -> int:
        return self.rank % self.local_world_size

    @property
    def node(self) -> int:
        return self.rank // self.local_world_size

    def environment(self) -> dict[str, str]:
        """What torchrun sets."""
        nodes = self.world_size // self.local_world_size
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(nodes),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }


def make_rank(rank: int, world_size: int, local_world_size: int | None = None) -> Rank:
    """Check the numbers. By default, as many processes share a machine as divide the world, at most 8."""
    if world_size < 1:
        raise BadInput(f"--world-size {world_size} is not a number of processes.", hint="Use at least 1.")
    if not 0 <= rank < world_size:
        raise BadInput(
            f"There is no rank {rank} among {world_size} processes.",
            hint=f"Use a rank from 0 to {world_size - 1}, or --rank all.",
        )
    if local_world_size is None:
        most = min(GPUS_PER_NODE, world_size)
        local_world_size = next(n for n in range(most, 0, -1) if world_size % n == 0)
    if local_world_size < 1 or world_size % local_world_size:
        raise BadInput(
            f"--local-world-size {local_world_size} does not divide --world-size {world_size}.",
            hint="Give the number of processes on each machine, which is the same on all of them.",
        )
    return Rank(rank, world_size, local_world_size)


def differing_ranks(first: Rank, others: tuple[int, ...] = ()) -> list[int]:
    """Ranks that may differ in memory: the first two, the first of the second machine, and the last.

    Shards are the largest on the first rank and the smallest on the last one; scripts often do more on the
    first rank of the job or of a machine. others: the ranks of a pipeline, and those that the script names.
    """
    ranks = {0, min(1, first.world_size - 1), first.world_size - 1, *others}
    if first.local_world_size < first.world_size:
        ranks.add(first.local_world_size)
    return sorted(rank for rank in ranks if rank < first.world_size)


def parse_world_sizes(value: int | str | Sequence[int]) -> tuple[int, ...]:
    """Read the world sizes of a plan, such as 8 or "8,16,32"; sorted, each once."""
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    sizes: set[int] = set()
    for part in parts:
        text = str(part).strip()
        if not text.isdigit() or int(text) < 1:
            raise BadInput(
                f"--world-size {value} is not a list of numbers of processes: {text!r} is none.",
                hint="Use whole numbers of at least 1, separated by commas, such as 8,16,32.",
            )
        sizes.add(int(text))
    if not sizes:
        raise BadInput("There are no world sizes.", hint="Use numbers of processes, such as 8,16,32.")
    return tuple(sorted(sizes))


def parse_rank(text: str) -> int | Literal["all"]:
    """Read the value of --rank."""
    if text == "all":
        return "all"
    if not text.isdigit():
        raise BadInput(f"--rank {text} is not a rank.", hint="Use a number, such as 0, or all.")
    return int(text)
