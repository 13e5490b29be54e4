"""Process groups of one rank without its peers: torch's own fake backend in place of every other.

The script runs as one rank. DeviceMesh, DTensor, FSDP, and pipelines are torch's own; only the collectives
are not carried out. Objects from other ranks are this rank's own, and a note says so.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.fake.devices import at_user_line
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.ranks import compat, data_parallel, objects, spawning
from pinchpoint.core.errors import BadInput, CannotFake


class _FinishedWork:
    """The handle of a collective that has finished."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def install(patches: Patches, observer: Observer) -> None:
    spawning.install(patches, observer)
    if not torch.distributed.is_available():
        return
    _groups(patches, observer)
    observer.objects = objects.SentObjects()
    for function in objects.functions(observer):
        _everywhere(patches, function.__name__, function)
    parallel = data_parallel.make_class(observer, torch.distributed)
    for owner in (torch.nn.parallel, sys.modules["torch.nn.parallel.distributed"]):
        patches.set(owner, "DistributedDataParallel", parallel)


def close() -> None:
    """End the process groups that a target has left open."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _everywhere(patches: Patches, name: str, value: Any) -> None:
    """Replace a function of torch.distributed also where torch has imported it by name."""
    for module in (
        "torch.distributed",
        "torch.distributed.distributed_c10d",
        "torch.distributed.device_mesh",
    ):
        if hasattr(sys.modules.get(module), name):
            patches.set(sys.modules[module], name, value)


def _groups(patches: Patches, observer: Observer) -> None:
    import torch.distributed as dist

    original_init, original_group, original_backend = (
        dist.init_process_group,
        dist.new_group,
        dist.get_backend,
    )
    backends: dict[Any, str] = {}  # the backend that the script asked for

    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_: Any,
        **__: Any,
    ) -> None:
        if dist.is_initialized():
            raise ValueError("trying to initialize the default process group twice!")  # torch's own message
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "0"))
        if size < 1:
            raise BadInput(
                f"The script starts a process group{at_user_line()}, whose size is not given.",
                hint="Add --world-size N to predict it as one rank of N processes.",
            )
        number = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        if number >= size:
            raise BadInput(
                f"The script starts a process group{at_user_line()} as rank {number} of {size}.",
                hint="Give a rank below the world size, or let --rank and --world-size set both.",
            )
        compat.start_fake_group(original_init, number, size)
        compat.prepare_flat_parameters(patches.set)
        compat.prepare_pipelines(patches.set)
        backends[None] = (backend or "nccl").rpartition(":")[2]
        observer.collectives.started = number, size
        observer.note(f"rank {number} of {size}, without peers")

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **options: Any
    ) -> Any:
        kept = {
            name: options[name] for name in ("use_local_synchronization", "group_desc") if name in options
        }
        return original_group(ranks, **kept)

    def get_backend(group: Any = None) -> str:
        return backends.get(None) or original_backend(group)

    mesh_type = importlib.import_module("torch.distributed.device_mesh").DeviceMesh
    original_mesh = mesh_type.__init__
    is_prepared = False

    def note_block_mask() -> None:
        what = "flex_attention over the keys of other ranks is not modelled"
        observer.notes.say("context_parallel", what, observer.ledger.site(), is_reason=True)

    def refuse_context_parallel() -> None:
        raise CannotFake(
            f"pinchpoint does not support context_parallel of torch {torch.__version__}{at_user_line()}.",
            hint="Use torch 2.9 or later.",
        )

    def init_mesh(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal is_prepared
        if not is_prepared:  # here and not at the start, because the import of DTensor takes long
            is_prepared = True
            compat.prepare_sharded_tensors(patches.set, observer.without_recording)
            compat.watch_context_parallel(patches.set, note_block_mask, refuse_context_parallel)
        original_mesh(self, *args, **kwargs)

    patches.set(mesh_type, "__init__", init_mesh)
    _everywhere(patches, "init_process_group", init_process_group)
    _everywhere(patches, "new_group", new_group)
    _everywhere(patches, "get_backend", get_backend)
    patches.set(dist, "is_nccl_available", lambda: True)
    for name in ("barrier", "monitored_barrier"):
        _everywhere(patches, name, lambda *_, **__: _FinishedWork())
