"""Recordings by name within a limit of memory, on a stand-in for a GPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recordings are torch's")

from tests.systems.common.training.recording_card import RecordingCard  # noqa: E402

from pinchpoint.systems.common.budgets import BudgetChoice  # noqa: E402
from pinchpoint.systems.common.training.recorder import (  # noqa: E402
    GRAPH_BYTES,
    MOST_GRAPH_BYTES,
    Recorder,
    can_record,
    recordings_bytes,
    with_recordings,
)

STEP = 10**6


def recorder_of(card: RecordingCard, most_bytes: int | None = None) -> Recorder:
    return Recorder(kind=("size", "sizes"), most_bytes=most_bytes, note=card.notes.append)


def record(recorder: Recorder, name: str, read_bytes: int = 0) -> Any:
    return recorder.record(name, lambda: torch.zeros(2), clear=lambda: None, read_bytes=read_bytes)


def test_a_pool_without_recordings_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses such a pool as long as a library has memory in it."""
    card = RecordingCard(monkeypatch, free=10**12, step=STEP)
    recorder = recorder_of(card)
    record(recorder, "one", 10)
    recorder.forget("one")
    assert (len(recorder), recorder.taken_bytes) == (0, 0)
    record(recorder, "one", 20)
    assert card.calls == ["recorded", "replayed", "recorded", "replayed"]
    assert recorder.taken_bytes == card.graph + 20
    # What a library keeps in the first pool still counts.
    card.pools["the pool"] = 300
    record(recorder, "two")
    assert card.calls[-2] == "recorded in pool 2" and recorder.taken_bytes == 2 * card.graph + 20 + 300


def test_a_recording_that_is_forgotten_leaves_a_gap_as_long_as_there_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = RecordingCard(monkeypatch, free=10**12, step=STEP)
    recorder = recorder_of(card)
    for name in ("one", "two"):
        record(recorder, name, 10)
    recorder.forget("one")
    assert recorder.taken_bytes == 2 * card.graph + 10
    record(recorder, "one", 10)
    assert card.calls[-2] == "recorded in the pool" and recorder.taken_bytes == 3 * card.graph + 20


@pytest.mark.parametrize("sees_before", [True, False])
def test_all_recordings_begin_anew_if_gaps_take_their_room(
    sees_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lack of room is seen before a recording, or after one that took more than expected."""
    most_bytes = recordings_bytes(STEP, 3)
    half = most_bytes // 2
    taken = [half, half, 0] if sees_before else [half, half - GRAPH_BYTES, 2 * GRAPH_BYTES]
    card = RecordingCard(monkeypatch, free=10**12, step=STEP, taken=taken)
    recorder = recorder_of(card, most_bytes)
    for name in ("one", "two"):
        assert record(recorder, name) is not None
    recorder.forget("two")
    card.calls.clear()
    assert (record(recorder, "two") is not None) is sees_before
    recorded = ["recorded", "replayed"]
    assert card.calls == (["released", *recorded] if sees_before else ["recorded in the pool", "released"])
    assert not recorder.is_over and not card.notes
    assert record(recorder, "one") is not None and len(recorder) == 1 + sees_before
    # Without a gap, too much memory ends recording.
    card.taken = [most_bytes]
    assert record(recorder, "three") is None
    assert recorder.is_over and len(recorder) == 0
    assert card.notes == [
        "All further steps are eager: recorded steps take 89.91 MiB; the limit is 89.91 MiB."
    ]


def test_what_other_processes_take_is_not_counted_as_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    card = RecordingCard(monkeypatch, free=10**12, step=STEP)
    own = card.record

    def beside_others(*arguments: Any, **named: Any) -> Any:
        found, pool = own(*arguments, **named)
        found.graph_bytes = 10**10
        return found, pool

    monkeypatch.setattr("pinchpoint.systems.common.training.recording.record", beside_others)
    recorder = recorder_of(card)
    assert record(recorder, "one") is not None
    assert recorder.taken_bytes == card.graph + MOST_GRAPH_BYTES


def test_a_step_known_to_lack_room_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    card = RecordingCard(monkeypatch, free=10**12, step=STEP)
    recorder = recorder_of(card, recordings_bytes(STEP, 1) + 100)
    assert recorder.could_record(10**9), "nothing is known yet"
    assert record(recorder, "one", 101) is None and len(card.notes) == 1
    assert not recorder.could_record(101) and recorder.could_record(100)
    assert record(recorder, "one", 100) is not None
    assert not recorder.could_record(0)
    recorder.is_over = True
    assert not recorder.could_record(0)


def test_an_eager_step_without_memory_beside_recordings_is_run_again_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = RecordingCard(monkeypatch, free=10**12, step=STEP)
    recorder, cleared = recorder_of(card), []
    missing = [True, True]

    def step() -> str:
        if missing.pop():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return "done"

    with pytest.raises(torch.OutOfMemoryError):
        recorder.run_eagerly(step)  # there is nothing to drop
    recorder.record("one", lambda: torch.zeros(2), clear=lambda: cleared.append(True))
    cleared.clear()
    card.calls.clear()
    missing[:] = [False, True]
    assert recorder.run_eagerly(step) == "done"
    assert card.calls == ["aside", "released", "aside"] and cleared == [True], "gradients are in its memory"
    assert recorder.is_over and len(recorder) == recorder.taken_bytes == 0
    assert card.notes == ["All further steps are eager: the run ran out of memory beside the recorded steps."]


def test_work_besides_steps_that_runs_out_of_memory_beside_recordings_is_done_again_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = RecordingCard(monkeypatch, free=10**12, step=STEP)
    recorder, missing = recorder_of(card), [True]

    def copy() -> str:
        if missing.pop():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return "copied"

    with pytest.raises(torch.OutOfMemoryError):
        recorder.with_room(copy)  # there is nothing to drop
    assert not recorder.is_over and not card.notes
    record(recorder, "one")
    card.calls.clear()
    missing[:] = [False, True]
    assert recorder.with_room(copy) == "copied"
    assert card.calls == ["released"], "and it does not run on the stream of the steps"
    assert recorder.is_over and len(recorder) == 0
    assert card.notes == ["All further steps are eager: the run ran out of memory beside the recorded steps."]


def test_the_largest_step_counts_though_its_memory_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    most_bytes = recordings_bytes(STEP, 1)
    for step, is_recorded in ((STEP, True), (STEP + 1, False)):
        card = RecordingCard(monkeypatch, free=10**12, step=step)
        recorder = recorder_of(card, most_bytes)
        recorder.measure_steps()
        card.step = 0  # as after a validation
        recorder.measure_steps()
        assert recorder.could_record(10**9), "the memory that is free is not known yet"
        assert (record(recorder, "one") is not None) is is_recorded
        assert recorder.most_bytes == most_bytes


def test_a_note_says_what_stays_eager_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    card = RecordingCard(monkeypatch, free=10**12, step=STEP)
    recorder = recorder_of(card, recordings_bytes(STEP, 1))
    assert record(recorder, "one") is not None and record(recorder, "two") is None
    assert card.notes == [
        "1 size is recorded; the steps of the others stay eager: with one more, the recordings would need "
        "81.91 MiB of memory; the limit is 73.91 MiB."
    ]
    card.notes.clear()
    record(recorder_of(card, 2**20), "one")
    assert card.notes == [
        "No step is recorded: the recordings would need 73.91 MiB of memory; the limit is 1.00 MiB."
    ]


@pytest.mark.parametrize(
    ("device", "allocator", "asked", "notes"),
    [
        ("cuda", "native", None, []),
        ("cpu", "native", None, []),
        (
            "cpu",
            "native",
            True,
            ["No step is recorded: record_steps needs a GPU, and the run is on cpu."],
        ),
        *(
            (
                "cuda",
                "cudaMallocAsync",
                asked,
                [
                    "No step is recorded: recordings need the memory allocator `native` of torch, "
                    "and this process uses `cudaMallocAsync`."
                ],
            )
            for asked in (None, True)
        ),
    ],
)
def test_steps_are_recorded_on_a_gpu_with_an_allocator_that_tells_what_it_holds(
    device: str, allocator: str, asked: bool | None, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.cuda.memory_snapshot raises an error with any other one."""
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: allocator)
    said: list[str] = []
    assert can_record(device, asked=asked, note=said.append) is (device == "cuda" and not notes)
    assert said == notes


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_the_prediction_of_a_budget_without_room_for_any_recording_is_that_of_eager_steps(
    missing_bytes: int,
) -> None:
    left_bytes = recordings_bytes(0, 1) - missing_bytes
    choice = BudgetChoice(64, 10**9, 10**9 + left_bytes, live_bytes=5 * 10**8)
    predicted = with_recordings(choice, 1234, 3).predicted_bytes
    assert predicted == (10**9 if missing_bytes else choice.budget_bytes)


@pytest.mark.gpu
def test_the_memory_of_recordings_is_free_for_an_eager_step_on_a_gpu() -> None:
    notes: list[str] = []
    recorder, size = Recorder(kind=("size", "sizes"), note=notes.append), 2**26

    def allocate(count: int) -> torch.Tensor:
        return torch.empty(count * size, dtype=torch.uint8, device="cuda").fill_(1)[:4].clone()

    recorder.run_eagerly(lambda: allocate(4))
    assert recorder.record("one", lambda: allocate(4), clear=lambda: None) is not None
    assert recorder.taken_bytes >= 4 * size
    torch.cuda.empty_cache()
    free_bytes, total_bytes = 5 * size, torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + free_bytes) / total_bytes)
        assert recorder.run_eagerly(lambda: allocate(6)).tolist() == [1] * 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert recorder.is_over and "ran out of memory beside" in notes[0]
