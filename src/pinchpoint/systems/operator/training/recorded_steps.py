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

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import MIB, show_bytes
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
MIN_PASSES = 2  # that follow over all bodies: fewer replays do not make up for a recording
Note = Callable[[str], None]


class RecordedSteps:
    """Steps with one body each, recorded as CUDA graphs and replayed.

    Every body has its own recording, because bodies differ in the numbers of their points and edges. The
    first step of each body is eager, and nothing is recorded before all bodies had one: by then the caching
    allocator holds what the largest step needs. All recordings compute in the same memory. Steps are recorded
    as long as that memory, the recorded bodies, which stay on the device, and the graphs together take no
    more than `most_bytes` and a share of the memory that is free; steps of the other bodies stay eager. If a
    recording takes more than that after all, or fails, all recordings are dropped, because the memory in
    which they compute is freed only with the last of them, and all further steps are eager.
    bodies: the number of bodies of the run. last_step: the number of its last step. note: called with every
    reason why steps are not recorded, once for each.
    """

    def __init__(
        self, *, bodies: int, last_step: int, most_bytes: int | None = None, note: Note | None = None
    ) -> None:
        self.bodies, self.last_step, self.most_bytes = bodies, last_step, most_bytes
        self._note = note or (lambda text: None)
        self._body_bytes = 0  # of the recorded bodies
        self._recording_bytes = 0  # of their graphs, and of the memory in which these compute
        self._step_bytes: int | None = None  # that the largest step allocates
        self._recordings: dict[str, recording.Recording] = {}
        self._bodies: dict[str, tuple[Sample, Graph]] = {}  # what the recordings read
        self._names: set[str] = set()  # of the bodies that were run
        self._side_stream = recording.SideStream()
        self._pool: Any = None
        self._is_over = False  # after a recording that failed or took too much
        self._lacks_room = False

    @property
    def recorded_bodies(self) -> int:
        """The number of bodies whose steps are replayed."""
        return len(self._recordings)

    def replay(self, name: str) -> Tensor | None:
        """Replay the step of the body with this name. Returns its result, or None if it is not recorded."""
        body_recording = self._recordings.get(name)
        return None if body_recording is None else body_recording.replay()

    def run(
        self,
        sample: Sample,
        graph: Graph,
        step: Callable[[tuple[Sample, Graph]], Tensor],
        *,
        number: int,
        clear: Callable[[], None],
        device: str,
    ) -> Tensor:
        """Return step(body) for step 1, 2, ... with a body, which is identified by its name, on the device.

        clear: frees the gradients of the last step.
        """
        result = self.replay(sample.name)
        if result is not None:
            return result
        body_on_device = sample.to(device), graph.to(device)
        if self._may_record(number) and self._has_room(tensor_bytes(*body_on_device), clear):
            self._record(sample.name, body_on_device, step, clear)
            result = self.replay(sample.name)
        self._names.add(sample.name)
        return self.run_eagerly(lambda: step(body_on_device)) if result is None else result

    def run_eagerly(self, function: Callable[[], Tensor]) -> Tensor:
        """Return function(), run on the stream of the eager steps: another one would have its own memory."""
        return self._side_stream.run(function)

    def _may_record(self, number: int) -> bool:
        """Whether a step of this number is worth recording: all bodies were run, and enough steps follow."""
        passes = (self.last_step - number) // self.bodies
        return not self._is_over and len(self._names) >= self.bodies and passes >= MIN_PASSES

    def _has_room(self, size: int, clear: Callable[[], None]) -> bool:
        """Whether a body of this size may be recorded."""
        if self._step_bytes is None:
            clear()
            # What is reserved and not allocated was allocated by eager steps. It stays available to them;
            # recordings have other memory.
            self._step_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            free_share_bytes = int(SHARE * torch.cuda.mem_get_info()[0])
            self.most_bytes = (
                free_share_bytes if self.most_bytes is None else min(self.most_bytes, free_share_bytes)
            )
        assert self.most_bytes is not None
        expected_bytes = recordings_bytes(self._step_bytes, len(self._recordings))
        need_bytes = self._body_bytes + size + max(expected_bytes, self._recording_bytes) + GRAPH_BYTES
        if need_bytes > self.most_bytes and not self._lacks_room:
            self._lacks_room = True
            some = f"The steps of some bodies stay eager after {len(self._recordings):,} were recorded"
            self._note(
                f"{some if self._recordings else 'No step is recorded'}: the recordings would need "
                f"{show_bytes(need_bytes)} of memory and may take {show_bytes(self.most_bytes)}."
            )
        return need_bytes <= self.most_bytes

    def _record(
        self,
        name: str,
        body_on_device: tuple[Sample, Graph],
        step: Callable[[tuple[Sample, Graph]], Tensor],
        clear: Callable[[], None],
    ) -> None:
        """Record the step of a body; if that fails or takes too much memory, drop all recordings."""
        try:
            body_recording, self._pool = recording.record(
                lambda: step(body_on_device), clear=clear, pool=self._pool
            )
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            first_line, _, _ = str(error).strip().partition("\n")
            reason = f"a step could not be recorded ({first_line.rstrip('.')})"
        else:
            self._recordings[name], self._bodies[name] = body_recording, body_on_device
            self._body_bytes += tensor_bytes(*body_on_device)
            self._recording_bytes += body_recording.taken_bytes
            taken_bytes = self._body_bytes + self._recording_bytes
            assert self.most_bytes is not None
            if taken_bytes <= self.most_bytes:
                return
            reason = (
                f"recorded steps took {show_bytes(taken_bytes)} of memory and may take "
                f"{show_bytes(self.most_bytes)}"
            )
            del body_recording
        self._drop_all(clear)
        self._note(f"All further steps are eager: {reason}.")

    def _drop_all(self, clear: Callable[[], None]) -> None:
        """Free the memory of all recordings and record nothing more."""
        clear()  # the gradients of a recorded step lie in the memory of the recordings
        self._recordings.clear()
        self._bodies.clear()
        self._pool, self._is_over = None, True
        self._body_bytes = self._recording_bytes = 0
        recording.release_memory()


def recordings_bytes(step_bytes: int, graphs: int) -> int:
    """The bytes of some graphs and of the memory they compute in. step_bytes: what a step allocates."""
    return round(GAPS * step_bytes) + WORKSPACE_BYTES + graphs * GRAPH_BYTES


def refuse_unrecordable(settings: Settings) -> None:
    """Refuse recorded steps if they are asked for together with settings that they do not support."""
    if settings.record_steps and (options := _unrecordable(settings)) is not None:
        option, instead = options
        raise BadInput(
            f"--set record_steps=true cannot be combined with {option}.",
            hint=f"Use {instead}, or --set record_steps=false.",
        )


def recorded_steps_of(
    settings: Settings,
    bodies: int,
    choice: BudgetChoice | None,
    *,
    device: str,
    body_bytes: int = 0,
    note: Note | None = None,
) -> RecordedSteps | None:
    """What records the steps of a run, within what the budget leaves; None if they are not recorded.

    Steps are recorded on a GPU if the settings ask for it, or leave it open and allow it; then, with a
    budget, only if the recordings of all bodies are predicted to fit into it. body_bytes: of all bodies.
    """
    if settings.record_steps is False or _unrecordable(settings) is not None:
        return None
    if device != "cuda":
        if settings.record_steps and note is not None:
            note(f"No step is recorded: record_steps needs a GPU, and the run is on {device}.")
        return None
    if choice is not None and settings.record_steps is None:
        need_bytes = _need_bytes(choice, body_bytes, bodies)
        if need_bytes > choice.budget_bytes:
            if note is not None:
                note(
                    f"No step is recorded: with recorded steps, the run would need {show_bytes(need_bytes)} "
                    f"of memory, and the budget is {show_bytes(choice.budget_bytes)}."
                )
            return None
    most_bytes = None if choice is None else choice.budget_bytes - choice.predicted_bytes
    return RecordedSteps(bodies=bodies, last_step=settings.steps, most_bytes=most_bytes, note=note)


def _unrecordable(settings: Settings) -> tuple[str, str] | None:
    """The option that keeps steps from being recorded, and another one that does not; None if all may be."""
    if settings.memory == "checkpoint":
        # A checkpoint reads the state of the random numbers, which cannot be recorded.
        return "--memory checkpoint", "--memory flat"
    if settings.accumulate > 1:
        return f"--accumulate {settings.accumulate}", "--accumulate 1"
    return None


def with_recordings(choice: BudgetChoice, body_bytes: int, bodies: int) -> BudgetChoice:
    """The choice with the memory of recorded steps, at most the budget.

    `RecordedSteps` records nothing that is expected to exceed what the budget leaves. If a recording takes
    more after all, it is dropped, but only after it was made. body_bytes: of all bodies.
    """
    need_bytes = _need_bytes(choice, body_bytes, bodies)
    return replace(choice, predicted_bytes=min(need_bytes, choice.budget_bytes))


def _need_bytes(choice: BudgetChoice, body_bytes: int, bodies: int) -> int:
    step_bytes = round(RESERVED * choice.live_bytes)
    return choice.predicted_bytes + body_bytes + recordings_bytes(step_bytes, bodies)
