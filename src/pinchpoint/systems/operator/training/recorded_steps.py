"""Steps of a run recorded as CUDA graphs, one for each body."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.budgets import BudgetChoice
from pinchpoint.systems.common.training.recorder import (
    Note,
    Recorder,
    beyond_budget,
    can_record,
    need_with_recordings,
    room_for_recordings,
)
from pinchpoint.systems.operator.data.loading import tensor_bytes
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.settings import Settings

MIN_PASSES = 2  # that follow over all bodies: fewer replays do not make up for a recording


class RecordedSteps:
    """Steps with one body each, recorded as CUDA graphs and replayed.

    Every body has its own recording, because bodies differ in the numbers of their points and edges. The
    first step of each body is eager, and nothing is recorded before all bodies had one: by then the caching
    allocator holds what the largest step needs. Recorded bodies stay on the device. Steps for which a
    `Recorder` has no room, and all steps after a recording that failed, are eager. bodies: the number of
    bodies of the run. last_step: the number of its last step. most_bytes, note: as in `Recorder`.
    """

    def __init__(
        self, *, bodies: int, last_step: int, most_bytes: int | None = None, note: Note | None = None
    ) -> None:
        self.bodies, self.last_step = bodies, last_step
        self._recorder = Recorder(kind=("body", "bodies"), most_bytes=most_bytes, note=note)
        self._names: set[str] = set()  # of the bodies that were run

    @property
    def recorded_bodies(self) -> int:
        """The number of bodies whose steps are replayed."""
        return len(self._recorder)

    @property
    def most_bytes(self) -> int | None:
        return self._recorder.most_bytes

    def replay(self, name: str) -> Tensor | None:
        """Replay the step of the body with this name. Returns its result, or None if it is not recorded."""
        return self._recorder.replay(name)

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
        body_on_device = self._recorder.with_room(lambda: (sample.to(device), graph.to(device)))
        if self._may_record(number):
            result = self._recorder.record(
                sample.name,
                lambda: step(body_on_device),
                clear=clear,
                reads=body_on_device,
                read_bytes=tensor_bytes(*body_on_device),
            )
        self._names.add(sample.name)
        return self.run_eagerly(lambda: step(body_on_device)) if result is None else result

    def run_eagerly(self, function: Callable[[], Tensor]) -> Tensor:
        """Return function(), run on the stream of the eager steps: another one would have its own memory."""
        return self._recorder.run_eagerly(function)

    def _may_record(self, number: int) -> bool:
        """Whether a step of this number is worth recording: all bodies were run, and enough steps follow."""
        passes = (self.last_step - number) // self.bodies
        return len(self._names) >= self.bodies and passes >= MIN_PASSES


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
    if not can_record(device, asked=settings.record_steps, note=note):
        return None
    if choice is not None and settings.record_steps is None:
        need_bytes = need_with_recordings(choice, body_bytes, bodies)
        if need_bytes > choice.budget_bytes:
            if note is not None:
                note(f"No step is recorded: {beyond_budget(need_bytes, choice.budget_bytes)}.")
            return None
    return RecordedSteps(
        bodies=bodies, last_step=settings.steps, most_bytes=room_for_recordings(choice), note=note
    )


def _unrecordable(settings: Settings) -> tuple[str, str] | None:
    """The option that keeps steps from being recorded, and another one that does not; None if all may be."""
    if settings.memory == "checkpoint":
        # A checkpoint reads the state of the random numbers, which cannot be recorded.
        return "--memory checkpoint", "--memory flat"
    if settings.accumulate > 1:
        return f"--accumulate {settings.accumulate}", "--accumulate 1"
    return None
