"""Steps of a run recorded as CUDA graphs within a limit of memory; where that is impossible, they are eager.

A small step spends most of its time on launching kernels; a replay launches them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.units import MIB, show_bytes
from pinchpoint.systems.common.budgets import RESERVED, BudgetChoice
from pinchpoint.systems.common.training import recording
from pinchpoint.systems.common.training.recording import Result

SHARE = 0.5  # of the free memory of a GPU, for recorded steps
# Recordings compute in one memory. It gets gaps, as one recording after another takes its place there: it
# was 1.5 times the peak of an eager step for eight cars of 5,000 panels.
GAPS = 2.0
GRAPH_BYTES = 8 * MIB  # of a recorded step besides that memory; 2 to 4 MiB were measured for 1,070 kernels
MOST_GRAPH_BYTES = 2 * GRAPH_BYTES  # if more is missing, other processes have taken it
WORKSPACE_BYTES = 64 * MIB  # of the libraries, which have another one for recordings
Note = Callable[[str], None]


@dataclass(frozen=True)
class _Kept:
    """A recording, what is kept because it reads it, and the bytes of that and of its graph."""

    recording: recording.Recording
    reads: Any
    read_bytes: int
    graph_bytes: int


class Recorder:
    """Recordings by name, all of which compute in the same memory.

    Steps are recorded as long as that memory, what recordings read, which stays on the device, and the graphs
    together take no more than `most_bytes` and a share of the memory that is free. If a recording takes more
    than that after all, or fails, or the run is out of memory beside recordings, all of them are dropped,
    because the memory in which they compute is freed only with the last of them, and nothing more is
    recorded. A recording that is forgotten leaves a gap in that memory: where room is missing then, all
    recordings begin anew instead. kind: the singular and the plural of what has a recording each, for the
    notes. note: called with every reason why steps are not recorded, once for each.
    """

    def __init__(
        self, *, kind: tuple[str, str], most_bytes: int | None = None, note: Note | None = None
    ) -> None:
        self.most_bytes = most_bytes
        self.is_over = False  # after a recording that failed or took too much memory
        self._kind = kind
        self._note = note or (lambda text: None)
        self._clear: Callable[[], None] = lambda: None  # of the last recording
        self._step_bytes = 0  # that the largest step allocates, as far as is known
        self._has_limit = False  # whether `most_bytes` accounts for the free memory
        self._kept: dict[str, _Kept] = {}
        self._side_stream = recording.SideStream()
        self._pool: Any = None  # the memory of all recordings
        self._pools: list[Any] = []  # this one, and earlier ones, in which libraries may still have memory
        self._pool_bytes = 0
        self._has_gaps = False  # in the memory of the recordings, after one was forgotten
        self._lacks_room = False

    def __len__(self) -> int:
        """The number of recordings."""
        return len(self._kept)

    @property
    def taken_bytes(self) -> int:
        """The bytes of the device that all recordings take, with what they read."""
        return self._read_bytes + self._recording_bytes

    @property
    def _read_bytes(self) -> int:
        return sum(kept.read_bytes for kept in self._kept.values())

    @property
    def _recording_bytes(self) -> int:
        """The bytes of the graphs, and of the memory in which these compute."""
        return self._pool_bytes + sum(kept.graph_bytes for kept in self._kept.values())

    def replay(self, name: str) -> Tensor | None:
        """Replay the recording of this name. Returns its result, or None if there is no such recording."""
        kept = self._kept.get(name)
        return None if kept is None else kept.recording.replay()

    def reads(self, name: str) -> Any:
        """What is kept for the recording of this name; None if there is no such recording."""
        kept = self._kept.get(name)
        return None if kept is None else kept.reads

    def forget(self, name: str) -> None:
        """Drop the recording of this name, if there is one. Others use the memory in which it computed."""
        if self._kept.pop(name, None) is None:
            return
        if self._kept:
            self._has_gaps = True
        else:
            self._leave_pool()

    def could_record(self, read_bytes: int) -> bool:
        """Whether a step that reads so many bytes may find room, by what is known without looking."""
        if self.is_over:
            return False
        return not self._has_limit or self._has_gaps or self._fits(read_bytes)

    def run_eagerly(self, function: Callable[[], Result]) -> Result:
        """Return function(), run on the stream of the eager steps: another one would have its own memory.

        If it runs out of memory beside recordings, all are dropped, and it is run again: a step begins
        without gradients, and a fused optimizer changes no weight before it has all its memory. One that is
        not fused, as density's, may have changed some weights or averages by then, and changes them again.
        """
        return self.with_room(lambda: self._side_stream.run(function))

    def with_room(self, function: Callable[[], Result]) -> Result:
        """Return function(). If it runs out of memory beside recordings, it is run again without them."""
        try:
            return function()
        except torch.OutOfMemoryError:
            if not self._kept:
                raise
        # Here the error no longer holds the tensors of the function.
        self.make_room("the run ran out of memory beside the recorded steps")
        return function()

    def make_room(self, reason: str) -> None:
        """Drop all recordings and record nothing more. reason: why, for the note."""
        self._end(reason, self._clear)

    def measure_steps(self) -> None:
        """Note what steps allocate, before memory is given back or other work takes some.

        Gradients that were not cleared hide a part of it.
        """
        if not self.is_over:
            self._step_bytes = max(self._step_bytes, self._side_stream.unused_bytes())

    def record(
        self,
        name: str,
        function: Callable[[], Tensor],
        *,
        clear: Callable[[], None],
        reads: Any = None,
        read_bytes: int = 0,
    ) -> Tensor | None:
        """Record a step under a name if there is room, and replay it.

        Returns the result of the step, or None if it is not recorded. clear: frees the gradients of the last
        step. reads: what is kept because the recording reads it; read_bytes: what that takes on the device.
        Call it after an eager step of the same size: by then the caching allocator holds what a step needs.
        """
        if self.is_over:
            return None
        self._clear = clear
        if not self._has_room(read_bytes, clear):
            if self._has_gaps:
                self._start_anew(clear)
            if not self._fits(read_bytes):
                self._note_lack_of_room(read_bytes)
                return None
        try:
            result, self._pool = recording.record(function, clear=clear, pool=self._pool)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            first_line, _, _ = str(error).strip().partition("\n")
            reason = f"a step could not be recorded ({first_line.rstrip('.')})"
        else:
            if self._pool not in self._pools:
                self._pools.append(self._pool)
            self._pool_bytes = recording.pool_bytes(self._pools)
            self._kept[name] = _Kept(result, reads, read_bytes, min(result.graph_bytes, MOST_GRAPH_BYTES))
            assert self.most_bytes is not None
            if self.taken_bytes <= self.most_bytes:
                return result.replay()
            reason = (
                f"recorded steps take {show_bytes(self.taken_bytes)}; the limit is "
                f"{show_bytes(self.most_bytes)}"
            )
            del result
            if self._has_gaps:
                self._start_anew(clear)
                return None
        self._end(reason, clear)
        return None

    def _has_room(self, size: int, clear: Callable[[], None]) -> bool:
        """Whether a step that reads so many bytes may be recorded."""
        if not self._has_limit:
            self._has_limit = True
            clear()
            self.measure_steps()
            free_share_bytes = int(SHARE * torch.cuda.mem_get_info()[0])
            self.most_bytes = (
                free_share_bytes if self.most_bytes is None else min(self.most_bytes, free_share_bytes)
            )
        elif self._fits(size):
            self.measure_steps()
        return self._fits(size)

    def _fits(self, size: int) -> bool:
        assert self.most_bytes is not None
        return self._need_bytes(size) <= self.most_bytes

    def _need_bytes(self, size: int) -> int:
        """The bytes that all recordings are expected to take with one that reads so many bytes."""
        expected_bytes = recordings_bytes(self._step_bytes, len(self))
        return self._read_bytes + size + max(expected_bytes, self._recording_bytes) + GRAPH_BYTES

    def _note_lack_of_room(self, size: int) -> None:
        if self._lacks_room:
            return
        self._lacks_room = True
        assert self.most_bytes is not None
        singular, plural = self._kind
        if self._kept:
            are = f"{singular} is" if len(self) == 1 else f"{plural} are"
            what = f"{len(self):,} {are} recorded; the steps of the others stay eager: with one more, "
        else:
            what = "No step is recorded: "
        self._note(
            f"{what}the recordings would need {show_bytes(self._need_bytes(size))} of memory; the limit is "
            f"{show_bytes(self.most_bytes)}."
        )

    def _end(self, reason: str, clear: Callable[[], None]) -> None:
        """Drop all recordings and record nothing more."""
        self._start_anew(clear)
        self.is_over = True
        self._note(f"All further steps are eager: {reason}.")

    def _start_anew(self, clear: Callable[[], None]) -> None:
        """Drop all recordings and free their memory."""
        clear()  # the gradients of a recorded step lie in the memory of the recordings
        self._kept.clear()
        self._leave_pool()
        recording.release_memory()

    def _leave_pool(self) -> None:
        """Let the next recording have another pool: torch refuses one whose last recording is gone, as long
        as a library has memory in it. What nothing uses is given back when memory is released.
        """
        self._pool, self._pool_bytes, self._has_gaps = None, 0, False


def recordings_bytes(step_bytes: int, graphs: int) -> int:
    """The bytes of some graphs and of the memory they compute in. step_bytes: what a step allocates."""
    return round(GAPS * step_bytes) + WORKSPACE_BYTES + graphs * GRAPH_BYTES


def room_for_recordings(choice: BudgetChoice | None) -> int | None:
    """The bytes that a budget leaves for recordings; None without a budget."""
    return None if choice is None else choice.budget_bytes - choice.predicted_bytes


def can_record(device: str, *, asked: bool | None, note: Note | None) -> bool:
    """Whether steps on this device can be recorded; if not, a note says so.

    asked: as in the settings. On a CPU, the note is given only if recorded steps were asked for.
    """
    if device != "cuda":
        if asked and note is not None:
            note(f"No step is recorded: record_steps needs a GPU, and the run is on {device}.")
        return False
    allocator = torch.cuda.get_allocator_backend()
    if allocator == "native":
        return True
    if note is not None:  # a `Recorder` asks the allocator what it holds, which others do not tell
        note(
            "No step is recorded: recordings need the memory allocator `native` of torch, and this process "
            f"uses `{allocator}`."
        )
    return False


def beyond_budget(need_bytes: int, budget_bytes: int) -> str:
    """Why a budget keeps steps from being recorded, for a note."""
    return (
        f"with recorded steps, the run would need {show_bytes(need_bytes)} of memory, and the budget is "
        f"{show_bytes(budget_bytes)}"
    )


def with_recordings(choice: BudgetChoice, read_bytes: int, graphs: int) -> BudgetChoice:
    """The choice with the memory of recorded steps, at most the budget; unchanged if none has room.

    A `Recorder` records nothing that is expected to exceed what the budget leaves. If a recording takes more
    after all, it is dropped, but only after it was made. read_bytes: as in `need_with_recordings`.
    """
    if choice.predicted_bytes + recordings_bytes(0, 1) > choice.budget_bytes:
        return choice
    need_bytes = need_with_recordings(choice, read_bytes, graphs)
    return replace(choice, predicted_bytes=min(need_bytes, choice.budget_bytes))


def need_with_recordings(choice: BudgetChoice, read_bytes: int, graphs: int) -> int:
    """The bytes that a run with recorded steps is predicted to need.

    read_bytes: of all that the recordings read and keep on the device.
    """
    step_bytes = round(RESERVED * choice.live_bytes)
    return choice.predicted_bytes + read_bytes + recordings_bytes(step_bytes, graphs)
