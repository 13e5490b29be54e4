"""`Collectives`: what collective operations return without peers, and which communicators they need.

A collective returns at once. Its outputs have no known values on the device; on the host, they are those of
this rank. NCCL has buffers of its own for every communicator, which `nccl_bytes` estimates.
"""

from __future__ import annotations

from typing import Any

from pinchpoint.backends.torch.ranks import compat
from pinchpoint.core.events import Span
from pinchpoint.core.ranks import NCCL_PER_COMMUNICATOR

# What these leave in their first argument is this rank's own.
_OWN = ("c10d::send", "c10d::barrier", "c10d::monitored_barrier_", "c10d::check_for_nan")
_SENDS = ("c10d::send", "c10d::recv_", "c10d::recv_any_source_")
# Every rank sends its second argument, which stands for what the others send.
_ALL_SEND = ("c10d::allgather_", "c10d::_allgather_base_", "c10d::alltoall", "c10d::gather_")


class Collectives:
    """The collectives of one run."""

    def __init__(self) -> None:
        self.started: tuple[int, int] | None = None  # rank and size of the default group
        self.groups: dict[str, int] = {}  # name of a group that communicated on the device -> its size
        self.sends_states = False  # whether the states of a module are sent, of which only shapes matter
        self._sending: dict[str, list[int]] = {}  # groups in which single ranks send to each other: ranks

    def run(self, func: Any, args: tuple[Any, ...]) -> Any:
        """The result of a collective of a process group: its first argument, and the work that is done."""
        group = compat.process_group_of(func, args)
        if group is not None:
            self._use(group)
            if func.name().startswith(_SENDS):
                self._sending.setdefault(group.group_name, compat.ranks_of(group))
        results = [
            compat.finished_work() if compat.is_work(result) else args[0]
            for result in compat.returns_of(func)
        ]
        return tuple(results) if len(results) > 1 else results[0] if results else None

    def received(self, func: Any, args: tuple[Any, ...]) -> list[tuple[Any, Any | None]]:
        """The tensors whose values depend on other ranks, each with that of this rank which stands for them.

        None stands for unknown values.
        """
        group = compat.process_group_of(func, args)
        name = func.name()
        if group is None or group.size() == 1 or name.startswith(_OWN) or self.sends_states:
            return []
        if name.startswith("c10d::broadcast_") and compat.root_of(func, args) == group.rank():
            return []
        if name.startswith(_ALL_SEND):
            pairs = zip(args[0], args[1], strict=False) if isinstance(args[1], list) else [args[:2]]
            return [(part, own) for parts, own in pairs for part in compat.tensors_in(parts)]
        is_in_place = name.startswith(("c10d::allreduce_", "c10d::broadcast_", "c10d::reduce_"))
        is_in_place = is_in_place and not name.startswith("c10d::reduce_scatter")
        return [(tensor, tensor if is_in_place else None) for tensor in compat.tensors_in(args[0])]

    def use_functional(self, func: Any, args: tuple[Any, ...]) -> None:
        """Note the group of a functional collective, which is given by its name."""
        group = compat.named_group_of(func, args)
        if group is not None:
            self._use(group)

    def communicates(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether a functional operation sends anything; others only wait for what was sent."""
        return compat.named_group_of(func, args) is not None

    def received_functional(
        self, func: Any, args: tuple[Any, ...], result: Any
    ) -> list[tuple[Any, Any | None]]:
        """The results of a functional collective, each with the tensor of this rank that stands for it."""
        tensors = compat.tensors_in(result)
        group = compat.named_group_of(func, args)
        is_alone = group is None or group.size() == 1
        own = [None] * len(tensors) if is_alone else compat.tensors_in(args[0])
        return list(zip(tensors, own, strict=False))

    def stages(self) -> list[int]:
        """The ranks of a pipeline: those that send to each other, in groups of this rank."""
        return sorted({rank for ranks in self._sending.values() for rank in ranks})

    def _use(self, group: Any) -> None:
        self.groups[group.group_name] = group.size()

    def nccl_bytes(self) -> Span:
        """What NCCL keeps for its communicators. A group creates one when it is first used."""
        count = sum(size > 1 for size in self.groups.values())
        return Span(*(count * part for part in NCCL_PER_COMMUNICATOR))
