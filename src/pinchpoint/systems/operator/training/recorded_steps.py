"""Steps of a run recorded as CUDA graphs, one for each body, and the memory they may take.

A step with a few thousand points spends most of its time on launching kernels; a replay launches them all at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.units import MIB
from pinchpoint.systems.common.budgets import RESERVED, BudgetChoice
from pinchpoint.systems.common.training import recording
from pinchpoint.systems.operator.data.loading import tensor_bytes
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.settings import Settings

SHARE = 0.5  # of the free memory of a GPU, for recorded steps
# Recordings compute in one memory. It gets gaps, as one recording after another takes its place there: it
# was 1.5 times the peak of an eager step for eight cars of 5,000 panels.
GAPS = 2.0
GRAPH_BYTES = 8 * MIB  # of a recorded step besides that memory; 2 to 4 MiB were measured for 1,070 kernels
WORKSPACE_BYTES = 64 * MIB  # of the libraries, which have another one for recordings


class RecordedSteps:
    """Steps with one body each, recorded as CUDA graphs and replayed.

    Every body has its own recording, because bodies differ in the numbers of their points and edges. The
    first step of each body is eager, and nothing is recorded before all bodies had one: by then the caching
    allocator holds what the largest step needs. All recordings compute in the same memory. Steps are recorded
    as long as that memory, the recorded bodies, which stay on the device, and the graphs together take no
    more than `most_bytes` and a share of the memory that is free; steps of the other bodies stay eager.
    bodies: the number of bodies of the run.
    """

    def __init__(self, *, bodies: int, most_bytes: int | None = None) -> None:
        self.bodies, self.most_bytes = bodies, most_bytes
        self._body_bytes = 0  # of the recorded bodies
        self._recording_bytes = 0  # of their graphs, and of the memory in which these compute
        self._step_bytes: int | None = None  # that the largest step allocates
        self._recordings: dict[str, recording.Recording] = {}
        self._bodies: dict[str, tuple[Sample, Graph]] = {}  # what the recordings read
        self._names: set[str] = set()  # of the bodies that were run
        self._aside = recording.SideStream()
        self._pool: Any = None

    def run(
        self,
        sample: Sample,
        graph: Graph,
        step: Callable[[tuple[Sample, Graph]], Tensor],
        *,
        clear: Callable[[], None],
        device: str,
    ) -> Tensor:
        """Return step(body) for a body, which is known by its name, on the device.

        clear: frees the gradients of the last step.
        """
        known = self._recordings.get(sample.name)
        if known is not None:
            return known.replay()
        own = sample.to(device), graph.to(device)
        size = tensor_bytes(*own)
        if len(self._names) < self.bodies or not self._has_room(size, clear):
            self._names.add(sample.name)
            return self.run_eagerly(lambda: step(own))
        self._bodies[sample.name] = own
        recorded, self._pool = recording.record(lambda: step(own), clear=clear, pool=self._pool)
        self._recordings[sample.name] = recorded
        self._body_bytes += size
        self._recording_bytes += recorded.taken_bytes
        return recorded.replay()

    def run_eagerly(self, function: Callable[[], Tensor]) -> Tensor:
        """Return function(), run on the stream of the eager steps: another one would have its own memory."""
        return self._aside.run(function)

    def _has_room(self, size: int, clear: Callable[[], None]) -> bool:
        """Whether a body of this size may be recorded."""
        if self._step_bytes is None:
            clear()
            # What is reserved and not allocated was allocated by eager steps. It stays available to them;
            # recordings have other memory.
            self._step_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            share = int(SHARE * torch.cuda.mem_get_info()[0])
            self.most_bytes = share if self.most_bytes is None else min(self.most_bytes, share)
        assert self.most_bytes is not None
        expected_bytes = recordings_bytes(self._step_bytes, len(self._recordings))
        with_it = self._body_bytes + size + max(expected_bytes, self._recording_bytes) + GRAPH_BYTES
        return with_it <= self.most_bytes


def recordings_bytes(step_bytes: int, graphs: int) -> int:
    """The bytes of some graphs and of the memory they compute in. step_bytes: what a step allocates."""
    return round(GAPS * step_bytes) + WORKSPACE_BYTES + graphs * GRAPH_BYTES


def recorded_steps_of(
    settings: Settings, bodies: int, choice: BudgetChoice | None, *, device: str
) -> RecordedSteps | None:
    """What records the steps of a run, within what the budget leaves; None if they are not recorded."""
    # A checkpoint reads the state of the random numbers, which cannot be recorded.
    recordable = settings.accumulate == 1 and settings.memory != "checkpoint" and device == "cuda"
    if not settings.record_steps or not recordable:
        return None
    most_bytes = None if choice is None else choice.budget_bytes - choice.predicted_bytes
    return RecordedSteps(bodies=bodies, most_bytes=most_bytes)


def with_recordings(choice: BudgetChoice, body_bytes: int, bodies: int) -> BudgetChoice:
    """The choice with the memory of recorded steps, which take no more than the budget leaves.

    body_bytes: of all bodies.
    """
    step_bytes = round(RESERVED * choice.live_bytes)
    need_bytes = choice.predicted_bytes + body_bytes + recordings_bytes(step_bytes, bodies)
    return replace(choice, predicted_bytes=min(need_bytes, choice.budget_bytes))
