"""`start`: let this process be one rank of a parallel job on one GPU, with or without its peers.

Without peers, torch's fake process group returns at once from every collective and sends nothing. The program
of one rank then runs with all its allocations, except those of NCCL. With peers, the other ranks are forked
and talk over gloo, which copies through the host.
"""

from __future__ import annotations

import os
import runpy
import socket
from pathlib import Path
from typing import Any

LOCAL_RANKS = 8  # GPUs per machine


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets; the only GPU is that of local rank 0."""
    local_world_size = min(LOCAL_RANKS, world_size)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(rank // local_world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(rank: int, world_size: int, *, path: Path, has_peers: bool) -> None:
    """Set the environment of a rank and replace NCCL. path: the program, which the peers run too."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    original = dist.init_process_group

    def init_process_group(*_: Any, **__: Any) -> None:
        if has_peers:
            original("gloo")
        else:
            original("fake", store=FakeStore(), rank=rank, world_size=world_size)

    original_group, original_barrier = dist.new_group, dist.barrier
    dist.init_process_group = init_process_group
    # Groups of a script may ask for NCCL or gloo, and barriers for a device, which gloo does not accept.
    dist.new_group = lambda ranks=None, *_, **__: original_group(ranks)
    dist.barrier = lambda group=None, *_, **__: original_barrier(group)
    os.environ |= environment(rank, world_size, port)
    for peer in range(world_size) if has_peers else ():
        if peer != rank and os.fork() == 0:
            os.environ |= environment(peer, world_size, port)
            runpy.run_path(str(path), run_name="__main__")
            os._exit(0)
