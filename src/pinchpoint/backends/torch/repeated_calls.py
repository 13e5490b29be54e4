"""`RepeatedCalls`: inference calls that are equal to earlier ones are written to the ledger, not run.

Loops of many small calls, such as the rollouts of reinforcement learning or an evaluation by generation, call
the same module with tensors of the same shapes thousands of times. Without gradients, a call that frees
nothing older than itself, leaves nothing behind but its outputs, writes to none of its inputs, and reads no
values allocates the same blocks each time. It runs twice; if both runs are alike, later ones are copied. The
16th, 256th, ... copy is run again and compared.
"""

from __future__ import annotations

import gc
import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import FakeTensor
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import BlockInfo

_CHECKS = frozenset(16**power for power in range(1, 8))  # copies that are run again
_PLAIN = (bool, int, float, str, type(None))
_LOOKS = 3  # recordings of a module for which all objects are searched, which takes a tenth of a second
_MOST = 20_000  # kinds of calls that are kept


@dataclass(frozen=True)
class _Output:
    """A tensor that a call returned. block: the number of its block in the call."""

    block: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    storage_bytes: int
    op: str


@dataclass(frozen=True)
class _Recording:
    """Blocks and events of one call, numbered from its first block; outputs are leaves of `result`."""

    blocks: tuple[BlockInfo, ...]
    events: tuple[int, ...]
    result: Any

    def is_like(self, other: _Recording) -> bool:
        return self.events == other.events and all(
            (a.bytes, a.phase, a.span) == (b.bytes, b.phase, b.span)
            for a, b in zip(self.blocks, other.blocks, strict=True)
        )


class RepeatedCalls:
    """Runs outermost module calls, or copies what an equal call allocated."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._recordings: dict[Any, _Recording] = {}
        self._copies: dict[Any, int] = {}  # calls of each kind since they are known to be alike
        self._looked_at: Counter[int] = Counter()  # recordings of each module
        self._unfit: set[int] = set()  # modules whose calls differ or have side effects

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        key = self._key(module, args, kwargs)
        if key is None:
            return run()
        copies = self._copies.get(key)
        if copies is not None and copies not in _CHECKS:
            self._copies[key] = copies + 1
            return self._copy(self._recordings[key])
        result, recording = self._record(module, run)
        before = self._recordings.get(key)
        if recording is None or (before is not None and not recording.is_like(before)):
            # The first call may allocate a library's workspace: only a later one tells about the module.
            if before is not None or copies is not None:
                self._unfit.add(id(module))
            self._copies.pop(key, None)
            self._recordings.pop(key, None)
            return result
        self._recordings[key] = recording
        if before is not None:
            self._copies[key] = (copies or 0) + 1
        return result

    def _key(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """What the allocations of a call depend on; None for a call that must run."""
        observer = self._observer
        if (
            torch.is_grad_enabled()
            or observer.ledger.phase is not None
            or observer.ledger.is_closed
            or observer.dynamic.calibrating
            or id(module) in self._unfit
            or len(self._recordings) > _MOST
            or torch.is_autocast_enabled("cpu")
            or torch.is_autocast_enabled("cuda")
        ):
            return None
        leaves = []
        for leaf in compat.tree_leaves((args, kwargs)):
            if type(leaf) is FakeTensor and observer.ledger.holds(leaf):
                leaves.append((leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.dtype))
            elif isinstance(leaf, _PLAIN):
                leaves.append(leaf)
            else:
                return None
        modes = tuple(part.training for part in module.modules())
        site = observer.ledger.site()
        return id(module), modes, torch.is_inference_mode_enabled(), site, tuple(leaves), tuple(kwargs)

    def _record(self, module: torch.nn.Module, run: Callable[[], Any]) -> tuple[Any, _Recording | None]:
        observer, ledger = self._observer, self._observer.ledger
        first_event, first = len(ledger.observation.events), len(ledger.observation.blocks)
        reads = observer.dynamic.reads
        written: list[int] = []
        observer.written = written
        try:
            result = run()
        finally:
            observer.written = None
        blocks = tuple(ledger.observation.blocks[first:])
        events = tuple(block - first for block in ledger.observation.events[first_event:])
        if (
            observer.dynamic.reads != reads
            or any(block < first for block in written)
            or min(events, default=-1) < 0
            or len({block.phase for block in blocks}) != 1
        ):
            return result, None
        leaves = compat.tree_leaves(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        known = [t for t in tensors if type(t) is not FakeTensor or observer.shadows.follows(t)]
        if known or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            return result, None
        del leaves
        look = self._looked_at[id(module)] < _LOOKS
        self._looked_at[id(module)] += 1
        if _is_held_elsewhere(tensors, look_for_bases=look):
            self._unfit.add(id(module))
            return result, None
        survivors = {block for block, count in Counter(events).items() if count == 1}
        outputs = {ledger.block_of(tensor) for tensor in tensors}
        if outputs != {block + first for block in survivors}:
            return result, None
        shapes = compat.tree_map_only(torch.Tensor, lambda t: _output(t, ledger.block_of(t) - first), result)
        return result, _Recording(blocks, events, shapes)

    def _copy(self, recording: _Recording) -> Any:
        ledger, observation = self._observer.ledger, self._observer.ledger.observation
        first = len(observation.blocks)
        ledger.begin_phase(recording.blocks[0].phase)
        observation.blocks += recording.blocks
        observation.events += [first + block for block in recording.events]
        bases: dict[int, torch.Tensor] = {}

        def tensor(output: _Output) -> torch.Tensor:
            if output.block not in bases:
                # A role may be given to what survives: it gets a block of its own.
                block = first + output.block
                observation.blocks[block] = replace(observation.blocks[block])
                base = torch.empty_strided(*_whole(output), dtype=output.dtype, device="cpu")
                bases[output.block] = base
                ledger.adopt(base, block)
            result = bases[output.block]
            if (tuple(result.shape), result.stride(), 0) != (output.shape, output.stride, output.offset):
                result = result.as_strided(output.shape, output.stride, output.offset)
            result._pinchpoint_op = output.op  # type: ignore[attr-defined]
            return result

        with self._observer.without_recording(), self._observer.fake_mode:
            return compat.tree_map_only(_Output, tensor, recording.result)


def _is_held_elsewhere(tensors: list[torch.Tensor], *, look_for_bases: bool) -> bool:
    """Whether something besides the result and this list refers to a tensor or to its storage.

    A module may keep one of its outputs; it is then not freed with the result. Whether it keeps the base of
    an output, which is a view, takes a look at all objects, so the caller asks for that only at first.
    """
    owners: dict[int, set[int]] = {}
    ids = set(map(id, tensors))
    for index in range(len(tensors)):
        if sys.getrefcount(tensors[index]) > 3:  # the result, the list and the argument
            return True
        base = compat.view_base(tensors[index])
        # No closure may refer to `base` here: its cell would be found.
        if base is not None and id(base) not in ids:
            if look_for_bases and gc.get_referrers(base):
                return True
            owners.setdefault(_storage(tensors[index]), set()).add(id(base))
        owners.setdefault(_storage(tensors[index]), set()).add(id(tensors[index]))
    return any(compat.storage_users(tensor) > len(owners[_storage(tensor)]) for tensor in tensors)


def _storage(tensor: torch.Tensor) -> int:
    return compat.storage_key(tensor.untyped_storage())


def _whole(output: _Output) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and stride of a tensor that fills the whole storage: the output itself, if it does."""
    count = output.storage_bytes // output.dtype.itemsize
    is_whole = output.offset == 0 and math.prod(output.shape) == count
    return (output.shape, output.stride) if is_whole else ((count,), (1,))


def _output(tensor: torch.Tensor, block: int) -> _Output:
    return _Output(
        block,
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.untyped_storage().nbytes(),
        getattr(tensor, "_pinchpoint_op", ""),
    )
