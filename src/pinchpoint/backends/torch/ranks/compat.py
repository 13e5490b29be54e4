"""Private APIs of torch.distributed (process groups, collectives, DTensor, FSDP) and of multiprocessing.

Imported late, because torch may be built without them, and because DTensor takes long to import.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pinchpoint.backends.torch import compat, versions


def start_fake_group(init: Callable[..., Any], rank: int, world_size: int) -> None:
    """Start the default process group with torch's fake backend. init: torch's own function."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init("fake", store=FakeStore(), rank=rank, world_size=world_size)


def finished_work() -> Any:
    """The handle of a collective that has finished, as operations of a process group return it."""
    from torch._C._distributed_c10d import FakeWork  # pyright: ignore[reportAttributeAccessIssue]

    return FakeWork().boxed()


def returns_of(operator: Any) -> list[Any]:
    """The types of an operator's results."""
    return [result.type for result in operator._schema.returns]


def is_work(kind: Any) -> bool:
    """Whether the type of a result is the handle of a collective."""
    return str(kind).endswith("c10d.Work")


def process_group_of(operator: Any, args: tuple[Any, ...]) -> Any | None:
    """The process group among the arguments of a collective."""
    names = compat.argument_names(operator)
    if "process_group" not in names:
        return None
    return torch.distributed.ProcessGroup.unbox(args[names.index("process_group")])


def root_of(operator: Any, args: tuple[Any, ...]) -> int:
    """The rank in its group that a collective sends from."""
    return args[compat.argument_names(operator).index("root_rank")]


def tensors_in(value: Any) -> list[Any]:
    """The tensors of an argument, which may be a list of them or of lists."""
    return [leaf for leaf in compat.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def named_group_of(operator: Any, args: tuple[Any, ...]) -> Any | None:
    """The process group whose name a functional collective has among its arguments."""
    from torch.distributed.distributed_c10d import _resolve_process_group  # pyright: ignore

    names = compat.argument_names(operator)
    at = names.index("group_name") if "group_name" in names else -1
    if not 0 <= at < len(args):
        return None
    return _resolve_process_group(args[at])


def prepare_sharded_tensors(
    patch: Callable[[Any, str, Any], Any], without_recording: Callable[[], Any]
) -> None:
    """Let DTensor work on simulated devices. without_recording: a context in which nothing is observed.

    Its random numbers need the state of a CUDA generator, which is not simulated, so they are drawn without
    it. The shapes of results of whole tensors are computed on fake tensors of its own, which take no memory.
    """
    from torch.distributed.tensor import DTensor, _dispatch, _random
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    # Fake tensors on CUDA would otherwise start a device that is not there.
    patch(sys.modules[compat.FakeTensorMode.__module__], "init_gpu_context", lambda device: None)
    for module in (_dispatch, _random):
        patch(module, "is_rng_supported_mesh", lambda mesh: False)
    for name in ("device", "is_cuda", "is_cpu"):  # torch itself takes the device of the wrapper, the host
        patch(DTensor, name, property(lambda self, name=name: getattr(self._local_tensor, name)))
    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def propagate(self: Any, op_schema: Any) -> Any:
        with without_recording():
            return original(self, op_schema)

    patch(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate)


class _DeviceType(type):
    """`torch.device`, but for a number, which torch cannot parse without a GPU."""

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if args and type(args[0]) is int:
            args = ("cuda", *args)
        return torch.device(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.device)


class _TorchOfModule:
    """What a module of torch finds under the name `torch`."""

    device = _DeviceType("device", (), {})

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def prepare_flat_parameters(patch: Callable[[Any, str, Any], Any]) -> None:
    """Let FullyShardedDataParallel take devices as numbers."""
    module = sys.modules.get("torch.distributed.fsdp._init_utils")
    if module is not None:
        patch(module, "torch", _TorchOfModule())


def prepare_pipelines(patch: Callable[[Any, str, Any], Any]) -> None:
    """Let a stage whose shapes are given not ask the others, as torch 2.12 to 2.14 do, whether theirs are."""
    module: Any = sys.modules.get("torch.distributed.pipelining.stage")
    stage_type = getattr(module, "PipelineStage", None)
    if not hasattr(stage_type, "_warmup_forward_vote"):
        return

    def vote(self: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
        needs_others = module.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        self._pinchpoint_vote = torch.tensor([0 if needs_others else 1], dtype=torch.int32)
        return self._pinchpoint_vote

    patch(stage_type, "_warmup_forward_vote", vote)
    patch(stage_type, "_warmup_backward_result", lambda self, received_result=None: self._pinchpoint_vote)


def watch_context_parallel(
    patch: Callable[[Any, str, Any], Any], note: Callable[[], None], refuse: Callable[[], None]
) -> None:
    """Look at what a script shards by sequence: `note` the mask of `flex_attention`.

    The ring of `context_parallel` is torch's own code. Before 2.9, it cannot run on simulated devices, which
    `refuse` says.
    """
    experimental = "torch.distributed.tensor.experimental"
    for name in ("_attention", "_context_parallel._attention"):
        module = sys.modules.get(f"{experimental}.{name}")
        original = getattr(module, "_context_parallel_buffers", None)
        if original is None:
            continue

        def shard(
            mesh: Any, buffers: Any, *args: Any, original: Callable[..., Any] = original, **kwargs: Any
        ) -> Any:
            if versions.number(torch.__version__) < (2, 9):
                refuse()
            if not all(isinstance(buffer, torch.Tensor) for buffer in buffers):
                note()
            return original(mesh, buffers, *args, **kwargs)

        patch(module, "_context_parallel_buffers", shard)


# torch's own class, which its compiler asks for the module whose forward pass runs.
_DATA_PARALLEL: Any = torch.nn.parallel.DistributedDataParallel


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let torch's compiler leave out this function, but not those that it calls."""
    return torch._disable_dynamo(function, recursive=False)  # pyright: ignore


def active_data_parallel() -> Any:
    """The module whose forward pass runs, or None."""
    return _DATA_PARALLEL._active_ddp_module


@contextlib.contextmanager
def inside_data_parallel(module: torch.nn.Module) -> Iterator[None]:
    """Let torch's compiler split what it compiles here by the buckets of the module."""
    before = active_data_parallel()
    _DATA_PARALLEL._active_ddp_module = module
    try:
        yield
    finally:
        _DATA_PARALLEL._active_ddp_module = before


def broadcast_coalesced(group: Any, tensors: list[torch.Tensor], size_bytes: int) -> None:
    """Send tensors from the first rank, flattened into buffers of so many bytes."""
    from torch.distributed import _broadcast_coalesced  # pyright: ignore

    group = group or torch.distributed.group.WORLD
    _broadcast_coalesced(group, tensors, size_bytes, 0)


def ranks_of(group: Any) -> list[int]:
    """The ranks in the whole job that a group consists of."""
    return torch.distributed.get_process_group_ranks(group)


def fsdp_operation(name: str) -> Callable[..., Any] | None:
    """The Python function behind an operation of FSDP, such as `fsdp::chunk_cat`."""
    module = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    short = name.partition("::")[2].partition(".")[0]
    return getattr(module, f"{short}_cuda", None) or getattr(module, short, None)


def run_on_parts(
    run: Callable[..., torch.Tensor], tensor: Any, weight: Any, whole_dims: int
) -> torch.Tensor | None:
    """Run a function that needs the last dimensions whole on a rank's part of a DTensor.

    None if these dimensions are sharded, or if the parts have to be added up first.
    """
    first = tensor.dim() - whole_dims
    if not all(p.is_replicate() or (p.is_shard() and p.dim < first) for p in tensor.placements):
        return None
    part = run(tensor.to_local(), weight.to_local() if hasattr(weight, "to_local") else weight)
    return type(tensor).from_local(part, tensor.device_mesh, tensor.placements, run_check=False)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor that this rank has; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def set_accelerator(patch: Callable[[Any, str, Any], Any], device: torch.device) -> None:
    """Let torch's libraries find this device where they ask for the machine's accelerator."""
    patch(torch._C, "_get_accelerator", lambda *_: device)
    # Packages pass the handle of the current stream to their kernels; builds without CUDA have none.
    patch(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


class _EndedProcess:
    """What `multiprocessing` knows about a process that it has started: this one has ended."""

    returncode = 0

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.sentinel = os.open(os.devnull, os.O_RDONLY)  # ready at once for whoever waits for it

    def poll(self, *_: Any) -> int:
        return 0

    def wait(self, *_: Any, **__: Any) -> int:
        return 0

    def terminate(self) -> None: ...

    kill = close = terminate


def function_of(process: Any) -> Any:
    """The function that a `multiprocessing.Process` runs; None for a subclass with a `run` of its own."""
    return process._target


def mark_ended(process: Any) -> None:
    """Let a `multiprocessing.Process` that was not started be one that has ended."""
    process._popen = _EndedProcess()
