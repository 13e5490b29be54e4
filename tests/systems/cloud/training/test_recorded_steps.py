"""Recorded steps: padding changes neither the loss nor its gradient, and sizes are recorded once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.systems.common.training.recording_card import RecordingCard

from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training import recorded_steps
from pinchpoint.systems.cloud.training.recorded_steps import DEAD, RecordedSteps, Sizes, pad_draw, sizes_of
from pinchpoint.systems.cloud.training.training_step import Stepper
from pinchpoint.systems.common.training.checkpoints import TORCH
from pinchpoint.systems.common.training.recorder import recordings_bytes

CONFIG = CloudConfig(
    in_features=0,
    classes=2,
    cell=0.1,
    widths=(8, 16),
    blocks=(1, 1),
    attention=(0, 2),
    heads=2,
    window=16,
    point_width=8,
    features=8,
)
SETTINGS = Settings(views=["uniform:0.3:0.7", "dense"], points=400, scenes=2, lr=1e-3, augment=False)


def scene(number: int, points: int = 400) -> Scene:
    rng = np.random.default_rng(number)
    flat = (rng.uniform(size=(points, 3)) * (1.5, 1.5, 0.3)).astype(np.float32)
    labels = (flat[:, 0] > 0.7).astype(np.int64)
    labels[::7] = -1
    return Scene("flat", flat, np.zeros((points, 0), np.float32), labels)


def drawn(stepper: Stepper, number: int = 1) -> tuple[Batch, ViewDraw]:
    batch = Batch.from_scenes([scene(0, 300), scene(1, 200)], device=stepper.device)
    return batch, stepper.draw(batch, number=number)


@pytest.mark.parametrize("consistency", ["none", "kl", "cos"])
def test_padding_changes_neither_the_loss_nor_its_gradient(consistency: str) -> None:
    settings = replace(SETTINGS, consistency=consistency)
    stepper = Stepper(CONFIG, settings, "cpu", prepares_ahead=True)
    batch, draw = drawn(stepper)
    results = []
    sizes = sizes_of(draw, compares_cells=consistency != "none")
    room = Sizes(
        sizes.points + 137,
        (sizes.voxels[0] + 33, sizes.voxels[1] + 1),
        sizes.scene_points and sizes.scene_points + DEAD + 5,
        sizes.cells and sizes.cells + DEAD + 7,
    )
    assert room.hold(sizes) and not room.hold(replace(sizes, voxels=(sizes.voxels[0], room.voxels[1])))
    for views in (draw, pad_draw(draw, room)):
        stepper.updates.clear()
        loss = stepper.gradients(batch, views)
        results.append((loss, [weight.grad for weight in stepper.model.parameters()]))
    (loss, gradients), (padded_loss, padded_gradients) = results
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_gradients, gradients, rtol=1e-4, atol=1e-6)


def test_draws_of_a_size_share_a_recording_that_reads_their_own_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = RecordingCard(monkeypatch, free=10**9, step=10**6)
    stepper = Stepper(CONFIG, SETTINGS, "cpu", prepares_ahead=True)
    steps = RecordedSteps()

    def sum_of_inputs(draw: ViewDraw) -> torch.Tensor:
        assert draw.tables is not None
        return draw.tables.inputs.double().sum()

    for number in range(1, 5):
        _, draw = drawn(stepper, number)
        result = steps.run(draw, sum_of_inputs, clear=lambda: None)
        torch.testing.assert_close(result, sum_of_inputs(draw))
    assert card.calls == ["aside", "recorded", "replayed", "replayed", "replayed"]
    assert steps.recorded_sizes == 1
    read_bytes = steps.recorded_bytes - card.graph
    assert read_bytes > 0
    card.calls.clear()
    # A draw with more voxels than there is room for makes the size grow, which is then recorded again.
    finer = Stepper(replace(CONFIG, cell=0.05), SETTINGS, "cpu", prepares_ahead=True)
    for number in range(1, 4):
        steps.run(drawn(finer, number)[1], sum_of_inputs, clear=lambda: None)
    # Its recording was the only one: the memory in which it computed is freed, with the smaller draw.
    assert card.calls == ["aside", "recorded", "replayed", "replayed"]
    assert steps.recorded_sizes == 1
    assert steps.recorded_bytes - card.graph > read_bytes


def test_a_size_gets_room_for_the_most_voxels_of_its_first_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    card = RecordingCard(monkeypatch, free=10**9, step=10**6)
    stepper = Stepper(
        CONFIG, replace(SETTINGS, views=["dense"], consistency="none"), "cpu", prepares_ahead=True
    )
    steps, seen = RecordedSteps(first_draws=3), []
    spread = 1.0, 1.6, 1.2, 1.65, 1.6  # scenes are scaled at random
    for number, scale in enumerate(spread, start=1):
        scenes = [replace(one, xyz=one.xyz * np.float32(scale)) for one in (scene(0, 300), scene(1, 200))]
        draw = stepper.draw(Batch.from_scenes(scenes), number=number)

        def note_voxels(views: ViewDraw) -> torch.Tensor:
            seen.append(sizes_of(views).voxels[0])
            return torch.zeros(2)

        steps.run(draw, note_voxels, clear=lambda: None)
    assert card.calls == ["aside"] * 3 + ["recorded", "replayed", "replayed"], "and it does not grow"
    assert seen[0] < seen[1] < seen[2] == seen[3] == seen[4]


def test_batches_of_somewhat_more_points_need_no_larger_size() -> None:
    sizes = Sizes(500, (300, 80), scene_points=1000, cells=400)
    room = sizes.with_room(600, None)
    assert room.hold(replace(sizes, scene_points=1090)) and not room.hold(replace(sizes, scene_points=1200))


def test_steps_are_eager_after_a_recording_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    card = RecordingCard(monkeypatch, free=10**9, step=10**6)
    card.error = torch.OutOfMemoryError("CUDA out of memory.\nmore")
    stepper = Stepper(CONFIG, SETTINGS, "cpu", prepares_ahead=True)
    steps = RecordedSteps(note=card.notes.append)
    for number in range(1, 4):
        steps.run(drawn(stepper, number)[1], lambda draw: torch.zeros(2), clear=lambda: None)
    assert card.calls == ["aside", "released", "aside", "aside"]
    assert card.notes == ["All further steps are eager: a step could not be recorded (CUDA out of memory)."]


def test_a_step_without_room_for_its_recording_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    card = RecordingCard(monkeypatch, free=10**9, step=10**6)
    stepper = Stepper(CONFIG, SETTINGS, "cpu", prepares_ahead=True)
    steps = RecordedSteps(most_bytes=2 * 10**6, note=card.notes.append)
    for number in range(1, 4):
        steps.run(drawn(stepper, number)[1], lambda draw: torch.zeros(2), clear=lambda: None)
    assert card.calls == ["aside"] * 3 and steps.recorded_sizes == steps.recorded_bytes == 0
    # Draws of a size that is known to have no room are not padded.
    monkeypatch.setattr(recorded_steps, "pad_draw", lambda *_: pytest.fail("padded in vain"))
    steps.run(drawn(stepper, 4)[1], lambda draw: torch.zeros(2), clear=lambda: None)
    (note,) = card.notes
    assert note.startswith("No step is recorded: the recordings would need") and note.endswith("1.91 MiB.")


@pytest.mark.parametrize("recorded", [0, 1])
def test_a_step_without_memory_to_pad_its_draw_is_eager_without_recordings(
    recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = RecordingCard(monkeypatch, free=10**9, step=10**6)
    stepper = Stepper(CONFIG, SETTINGS, "cpu", prepares_ahead=True)
    steps = RecordedSteps(note=card.notes.append)
    step = lambda draw: draw.tables.inputs.double().sum()  # noqa: E731
    for number in range(1, 2 + recorded):
        steps.run(drawn(stepper, number)[1], step, clear=lambda: None)
    assert steps.recorded_sizes == recorded

    def fail(*_: Any) -> ViewDraw:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(recorded_steps, "pad_draw", fail)
    card.calls.clear()
    for number in (3, 4):
        _, draw = drawn(stepper, number)
        torch.testing.assert_close(steps.run(draw, step, clear=lambda: None), step(draw))
    assert card.calls == ["released", "aside", "aside"] and steps.recorded_sizes == 0
    assert card.notes == ["All further steps are eager: there was no memory to pad a draw."]


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_a_validation_before_the_first_recording_does_not_hide_what_steps_take(
    missing_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives back the memory by which recordings get room, and gradients would hide a part of that."""
    card, cleared = RecordingCard(monkeypatch, free=10**12, step=7 * 10**8), []
    stepper = Stepper(CONFIG, SETTINGS, "cpu", prepares_ahead=True)
    draws = [drawn(stepper, number)[1] for number in (1, 2)]
    probe = RecordedSteps()
    for draw in draws:
        probe.run(draw, lambda _: torch.zeros(2), clear=lambda: None)
    read_bytes = probe.recorded_bytes - card.graph
    most_bytes = read_bytes + recordings_bytes(card.step, 1) - missing_bytes
    steps = RecordedSteps(most_bytes=most_bytes, note=card.notes.append)
    monkeypatch.setattr(recorded_steps, "release_memory", lambda: setattr(card, "step", 0))
    steps.run(draws[0], lambda _: torch.zeros(2), clear=lambda: cleared.append(card.step))
    assert steps.run_eagerly(lambda: "validated") == "validated" and cleared == [7 * 10**8]
    steps.run(draws[1], lambda _: torch.zeros(2), clear=lambda: None)
    assert steps.recorded_sizes == 1 - missing_bytes and len(card.notes) == missing_bytes


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "consistency"), [("fp32", "none"), ("fp32", "kl"), ("bf16", "kl")])
def test_recorded_steps_on_a_gpu_are_near_eager_ones(precision: str, consistency: str) -> None:
    losses = {}
    for records in (False, True):
        settings = replace(
            SETTINGS, precision=precision, consistency=consistency, record_steps=records, steps=30
        )
        notes: list[str] = []
        stepper = Stepper(CONFIG, settings, "cuda", note=notes.append)
        losses[records] = [
            float(stepper.step([scene(0, 300), scene(1, 200)], number=number)[0]) for number in range(1, 31)
        ]
        assert not notes
        if records:
            assert stepper.recorded_steps is not None and stepper.recorded_steps.recorded_sizes >= 1
    assert losses[True][-1] < losses[True][0]
    assert losses[True] == pytest.approx(losses[False], rel=1e-3 if precision == "fp32" else 3e-2)


@pytest.mark.gpu
def test_a_run_continues_after_a_step_that_cuda_refused_to_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step waits for its loss, which is not possible while it is recorded."""
    losses, notes = {}, []
    for records in (False, True):
        stepper = Stepper(CONFIG, replace(SETTINGS, record_steps=records, steps=8), "cuda", note=notes.append)

        def waiting(*arguments: Any, own: Any = stepper.gradients) -> torch.Tensor:
            loss = own(*arguments)
            if torch.cuda.is_current_stream_capturing():
                loss.item()
            return loss

        monkeypatch.setattr(stepper, "gradients", waiting)
        losses[records] = [
            float(stepper.step([scene(0, 300), scene(1, 200)], number=number)[0]) for number in range(1, 9)
        ]
        assert stepper.recorded_sizes == (0 if records else None)
    assert len(notes) == 1 and "could not be recorded" in notes[0]
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
    assert torch.rand(3, device="cuda").min() >= 0
    # Another run resumes from a checkpoint and takes the same step.
    state = TORCH.decode(TORCH.encode(stepper.updates.state()))
    other = Stepper(CONFIG, replace(SETTINGS, steps=8), "cuda")
    other.updates.restore(state)
    steps = [float(one.step([scene(0, 300), scene(1, 200)], number=9)[0]) for one in (stepper, other)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("consistency", ["none", "kl"])
def test_a_size_that_grows_on_a_gpu_is_recorded_again(consistency: str) -> None:
    """Its recording is the only one, and cuBLAS has its workspace in the memory of that."""
    views = ["dense"] if consistency == "none" else ["dense", "uniform:0.5:0.5"]
    losses, notes = {}, []
    torch._C._cuda_clearCublasWorkspaces()  # pyright: ignore[reportAttributeAccessIssue]
    for records in (True, False):
        settings = replace(SETTINGS, views=views, consistency=consistency, record_steps=records, steps=12)
        stepper = Stepper(CONFIG, settings, "cuda", note=notes.append)
        losses[records] = []
        for number in range(1, 13):
            scale = np.float32((number + 3) // 4)  # it grows in the fifth and in the ninth step
            scenes = [replace(one, xyz=one.xyz * scale) for one in (scene(0, 300), scene(1, 200))]
            losses[records].append(float(stepper.step(scenes, number=number)[0]))
        assert stepper.recorded_sizes == (1 if records else None)
        assert bool(stepper.recorded_bytes) is records
    assert not notes
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
