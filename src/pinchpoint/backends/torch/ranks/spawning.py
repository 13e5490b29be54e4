"""Scripts that start the processes of a parallel job: that of the asked rank is run, in this process.

That is `torch.multiprocessing.spawn` and `start_processes`, torch's elastic launcher, which
`accelerate.notebook_launcher` uses, and single processes (`multiprocessing.Process`) whose function is in a
file that starts a process group.
"""

from __future__ import annotations

import importlib
import itertools
import linecache
import os
import sys
from collections.abc import Callable
from typing import Any

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.ranks import compat
from pinchpoint.core.ranks import make_rank


class _FinishedProcesses:
    """What `spawn` returns with join=False."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True


def _is_rank(function: Any) -> bool:
    """Whether a function of a process is in a file that starts a process group."""
    code = getattr(function, "__code__", None)
    lines = [] if code is None else linecache.getlines(code.co_filename)
    return any("init_process_group" in line for line in lines)


def rank_starter(observer: Observer) -> Callable[[Any], bool]:
    """What starts a process of the script: runs that of the asked rank, and none of the others.

    Returns False for a process that is not a rank.
    """
    numbers = itertools.count()

    def start(process: Any) -> bool:
        if not _is_rank(compat.function_of(process)):
            return False
        compat.mark_ended(process)
        if next(numbers) == int(os.environ.get("LOCAL_RANK", "0")):
            observer.note("of the processes that the script starts, that of one rank is predicted")
            process.run()
        return True

    return start


def install(patches: Patches, observer: Observer) -> None:
    import torch.multiprocessing as multiprocessing

    def note(number: int, count: int) -> None:
        if count > 1:
            which = f"number {number}" if number else "the first"
            observer.note(f"{which} of {count} spawned processes is predicted")
        elif "WORLD_SIZE" not in os.environ:
            observer.note("one process is spawned; add --world-size N if there are N GPUs")

    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        *_: Any,
        **__: Any,
    ) -> _FinishedProcesses | None:
        number = min(int(os.environ.get("LOCAL_RANK", "0")), nprocs - 1)
        if "LOCAL_RANK" in os.environ:
            os.environ["LOCAL_RANK"] = str(number)  # the simulated device is that of this process
        note(number, nprocs)
        fn(number, *args)
        return None if join else _FinishedProcesses()

    for owner in (multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.set(owner, "spawn", spawn)
        patches.set(owner, "start_processes", spawn)

    class Launch:
        """`elastic_launch`: sets the variables of torchrun and calls the function."""

        def __init__(self, config: Any, entrypoint: Callable[..., Any]) -> None:
            self._config, self._entrypoint = config, entrypoint

        def __call__(self, *args: Any) -> dict[int, Any]:
            local = self._config.nproc_per_node
            count = local * self._config.min_nodes
            job = make_rank(min(int(os.environ.get("RANK", "0")), count - 1), count, local)
            note(job.rank, count)
            os.environ |= job.environment()
            return {job.rank: self._entrypoint(*args)}

    try:
        owners = [importlib.import_module(f"torch.distributed.launcher{name}") for name in ("", ".api")]
    except ImportError:  # torch may be built without it
        return
    for owner in owners:
        patches.set(owner, "elastic_launch", Launch)
