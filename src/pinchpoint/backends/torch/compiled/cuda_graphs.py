"""`CudaGraphs`: the memory pool of the CUDA graphs that torch.compile captures (`mode="reduce-overhead"`).

A captured function runs once as a warm-up, which takes its memory from the pool. The next time it is
captured: inputs without a fixed address are copied into the pool first. From then on it is replayed, which
allocates nothing. What a step leaves in the pool is freed when the next step starts, even if the script still
has it, such as gradients. The pool is never given back.

The rules for the end of a step are those of torch's CUDAGraphTreeManager. It captures a function once more if
the order of functions or the addresses of static inputs change; here only the order counts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal

import torch

from pinchpoint.backends.torch.compat import FakeTensor
from pinchpoint.backends.torch.compiled import compat
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import FREE_CACHE, PRIVATE_POOL

Captured = Callable[[list[Any]], Any]


class CudaGraphs:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._numbers = itertools.count()
        self._warm: set[int] = set()  # functions that have run once
        self._recorded: set[tuple[int, ...]] = set()  # sequences of functions of one step
        self._path: tuple[int, ...] = ()  # functions of the current step
        self._outputs: set[int] = set()  # blocks that they returned
        self._state: Literal["none", "warm-up", "recording", "replay"] = "none"
        self._generation: int | None = None
        self._awaits_backward = False

    def capture(
        self,
        function: Captured,
        static_input_idxs: Collection[int] = (),
        *,
        is_backward: bool = False,
        is_inference: bool = False,
        mutated_input_idxs: Collection[int] = (),
        **_: Any,
    ) -> Captured:
        """Replaces torch's `cudagraphify`. The function is captured for every combination of its integers."""
        static, mutated = frozenset(static_input_idxs), frozenset(mutated_input_idxs)
        numbers: dict[tuple[int, ...], int] = {}

        def run(inputs: list[Any]) -> Any:
            sizes = tuple(value for value in inputs if isinstance(value, int))
            number = numbers.setdefault(sizes, next(self._numbers))
            result = self._run(number, function, inputs, static, mutated)
            if not is_inference:
                self._awaits_backward = not is_backward
            return result

        return run

    def set_to_running_backward(self) -> None:
        """Called by a backward pass that is not captured."""
        self._awaits_backward = False

    def _run(
        self,
        number: int,
        function: Captured,
        inputs: list[Any],
        static: frozenset[int],
        mutated: frozenset[int],
    ) -> Any:
        if self._state in ("warm-up", "recording"):
            self._try_to_end_step()
        if any(not self._is_in_pool(inputs[at]) for at in mutated - static):
            return function(inputs)  # torch captures no function that changes such an input
        if number not in self._warm or self._state == "warm-up":
            self._warm.add(number)
            return self._execute("warm-up", number, function, inputs)
        if self._state != "recording":
            if (*self._path, number) not in self._recorded:
                self._try_to_end_step()
            if (*self._path, number) in self._recorded:
                return self._execute("replay", number, function, inputs)
        self._copy_into_pool(inputs, static)
        return self._execute("recording", number, function, inputs)

    def _try_to_end_step(self) -> None:
        """Free what the step has left, if a new one has started; or forget the step if nothing is left."""
        ledger, is_marked = self._observer.ledger, compat.is_step_marked()
        left = self._outputs & ledger.live_blocks()
        is_new = self._generation != compat.generation() and (is_marked or not self._awaits_backward)
        if is_new or not left:
            ledger.release(left)
            self._path, self._outputs, self._state = (), set(), "none"

    def _execute(
        self,
        state: Literal["warm-up", "recording", "replay"],
        number: int,
        function: Captured,
        inputs: list[Any],
    ) -> Any:
        self._path, self._state, self._generation = (*self._path, number), state, compat.generation()
        ledger, kernels = self._observer.ledger, self._observer.kernel_model
        if state == "recording":
            self._recorded.add(self._path)
            ledger.observation.events.append(FREE_CACHE)
        with self._pool():
            if state == "replay":
                with ledger.uncounted(), kernels.without_workspaces():
                    outputs = function(inputs)
            else:
                kernels.free_workspaces(ledger)
                outputs = function(inputs)
                kernels.free_workspaces(ledger)
        tensors = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        self._outputs |= {
            ledger.block_of(tensor)
            for tensor in tensors
            if type(tensor) is FakeTensor and ledger.is_in_pool(tensor)
        }
        return outputs

    def _copy_into_pool(self, inputs: list[Any], static: frozenset[int]) -> None:
        with self._pool():
            for at, value in enumerate(inputs):
                if at not in static and type(value) is FakeTensor and not self._is_in_pool(value):
                    inputs[at] = torch.empty_strided(
                        value.size(), value.stride(), dtype=value.dtype, device=value.device
                    )

    def _is_in_pool(self, value: Any) -> bool:
        """Whether a tensor was returned by a function of this step."""
        return type(value) is FakeTensor and self._observer.ledger.block_of(value) in self._outputs

    @contextlib.contextmanager
    def _pool(self) -> Iterator[None]:
        ledger = self._observer.ledger
        before, ledger.stream = ledger.stream, PRIVATE_POOL
        try:
            yield
        finally:
            ledger.stream = before
