"""Budgets: the first views mode that fits is chosen, and the prediction covers the peak of a step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pinchpoint.backends.torch import measurement
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.systems.cloud.data.augmentation import augment
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model import convolution
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.views import Batch
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training import budget, recorded_steps
from pinchpoint.systems.cloud.training.budget import (
    StepBytes,
    forecast_recordings,
    possible_views_modes,
    views_mode_for,
)
from pinchpoint.systems.cloud.training.recorded_steps import (
    Sizes,
    largest_of_size,
    pad_draw,
    size_number,
    sizes_of,
)
from pinchpoint.systems.cloud.training.training_step import Stepper
from pinchpoint.systems.common.training.recorder import (
    GAPS,
    MOST_GRAPH_BYTES,
    WORKSPACE_BYTES,
    recordings_bytes,
)

CONFIG = CloudConfig(
    in_features=0, classes=2, cell=0.1, widths=(16, 16), blocks=(1, 1), attention=(0, 0), point_width=32
)
SETTINGS = Settings(
    views=["dense", "log-uniform:0.5:1", "uniform:0.2:0.9"],
    points=4000,
    scenes=1,
    augment=False,
    record_steps=False,
)


def scene(points: int = 4000) -> Scene:
    rng = np.random.default_rng(0)
    flat = rng.uniform(size=(points, 3)) * (4, 4, 0.05)
    return Scene(
        "flat", flat.astype(np.float32), np.zeros((points, 0), np.float32), rng.integers(0, 2, points)
    )


@pytest.fixture(scope="module")
def compiled() -> None:
    """Compile the loops once: a step that compiles them keeps tensors for longer, and seems to need more."""
    Stepper(CONFIG, SETTINGS, "cpu").step([scene(64)], number=1)


@pytest.fixture
def alone(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the process itself as 0 bytes, because its size differs from run to run."""
    monkeypatch.setattr(budget, "cpu_bytes", lambda tensor_bytes, resident: round(tensor_bytes))


def need(**changes: Any) -> int:
    return views_mode_for(
        CONFIG, replace(SETTINGS, **changes), [scene()], budget="1TB", device="cpu"
    ).predicted_bytes


@pytest.mark.usefixtures("alone")
def test_views_are_batched_if_that_fits_and_accumulated_otherwise() -> None:
    together, one_by_one = need(views_mode="batched"), need(views_mode="accumulate")
    assert one_by_one < 0.7 * together, "only one of three views is in memory at a time"
    for budget_bytes, mode in (
        (together, "batched"),
        (together - 1, "accumulate"),
        (one_by_one, "accumulate"),
    ):
        result = views_mode_for(CONFIG, SETTINGS, [scene()], budget=budget_bytes, device="cpu")
        assert result.views_mode == mode and result.predicted_bytes <= budget_bytes
    with pytest.raises(DoesNotFit) as error:
        views_mode_for(CONFIG, SETTINGS, [scene()], budget=one_by_one - 1, device="cpu")
    assert error.value.need_bytes == one_by_one and "fewer --points or --scenes" in error.value.hint
    with pytest.raises(DoesNotFit):  # only the requested mode is tried
        views_mode_for(
            CONFIG, replace(SETTINGS, views_mode="batched"), [scene()], budget=one_by_one, device="cpu"
        )


@pytest.mark.usefixtures("alone")
def test_no_step_exceeds_the_predicted_peak() -> None:
    predicted = need(views_mode="batched")
    stepper = Stepper(CONFIG, replace(SETTINGS, views_mode="batched"), "cpu")

    def steps() -> None:
        for number in (1, 2, 3):
            stepper.step([scene()], number=number)

    peak_bytes = measurement.account(steps) or 0
    assert 0.6 * predicted < peak_bytes <= predicted


@pytest.mark.usefixtures("alone")
def test_alternating_views_need_as_much_as_the_largest_of_them_alone() -> None:
    views = ["one-per-cell", "uniform:0.2:0.9", "dense"]
    alternating = need(views=views, schedule="alternate", points=300)
    assert alternating == need(views=["dense"], points=300) > need(views=["one-per-cell"], points=300)


@pytest.mark.usefixtures("alone")
def test_the_peak_of_a_large_scene_is_extrapolated_from_parts_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = need(views_mode="batched")
    monkeypatch.setattr(budget, "WHOLE_POINTS", 3000)
    assert whole <= need(views_mode="batched") < 1.3 * whole
    monkeypatch.setattr(budget, "PART_POINTS", 3000)
    assert whole <= need(views_mode="batched") < 1.5 * whole


@pytest.mark.usefixtures("alone")
def test_a_step_whose_parts_are_mostly_weights_is_not_predicted_too_low(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In small parts the peak is that of the optimizer, which does not grow with the points."""
    config, settings = replace(CONFIG, widths=(16, 128)), replace(SETTINGS, views_mode="batched")
    measure = lambda: views_mode_for(config, settings, [scene()], budget="1TB", device="cpu").predicted_bytes  # noqa: E731
    whole = measure()
    monkeypatch.setattr(budget, "WHOLE_POINTS", 600)
    monkeypatch.setattr(budget, "PART_POINTS", 3000)
    assert whole <= measure() < 2 * whole
    small = budget._live(config, settings, scene(200), prepares_ahead=False)
    assert small < 1.2 * budget._weight_bytes(config, settings) < 0.7 * whole


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("first", ["dense", "sparse"])
def test_a_scene_of_uneven_density_is_not_predicted_too_low(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A crop around a point of the dense half has few voxels."""
    rng = np.random.default_rng(0)
    halves = [rng.uniform(size=(2000, 3)) * (side, side, 0.05) for side in (1, 12)]
    xyz = np.concatenate(halves if first == "dense" else halves[::-1]).astype(np.float32)
    uneven = Scene("uneven", xyz, np.zeros((4000, 0), np.float32), np.zeros(4000, np.int64))
    settings = replace(SETTINGS, views=["dense"])
    measure = lambda: views_mode_for(CONFIG, settings, [uneven], budget="1TB", device="cpu").predicted_bytes  # noqa: E731
    whole = measure()
    monkeypatch.setattr(budget, "WHOLE_POINTS", 600)
    monkeypatch.setattr(budget, "PART_POINTS", 1000)
    assert whole <= measure() < 3 * whole
    # With another scene that has as many points in fewer voxels, the same voxels decide.
    flat = replace(uneven, xyz=(xyz * (0.1, 0.1, 1)).astype(np.float32))
    both = views_mode_for(CONFIG, settings, [flat, uneven], budget="1TB", device="cpu")
    assert whole <= both.predicted_bytes


def test_scenes_that_are_moved_at_random_have_more_voxels() -> None:
    scenes = [scene()]
    growths = []
    for moves in (False, True):
        settings = replace(SETTINGS, augment=moves)
        full = budget._full_sizes(CONFIG, settings, scenes)
        growths.append(budget._part(CONFIG, settings, scenes, full, 4000).growth)
    assert growths[0] == 1 < growths[1] < 3


def test_the_prediction_for_a_card_includes_its_context() -> None:
    on_card = views_mode_for(CONFIG, SETTINGS, [scene()], budget="h200", device="cuda").predicted_bytes
    assert on_card > 2**28 and possible_views_modes(replace(CONFIG, norm="batch"), SETTINGS) == ("batched",)


def test_the_prediction_for_a_card_includes_the_larger_chunks_of_convolutions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, config = replace(SETTINGS, views=["dense"]), replace(CONFIG, cell=0.05, widths=(32, 16))
    on_card = views_mode_for(config, settings, [scene()], budget="h200", device="cuda").predicted_bytes
    h200 = budget.budget_of("h200")
    monkeypatch.setattr(convolution, "CPU_BYTES", convolution.GPU_BYTES)  # use the chunks of a card
    stepper = Stepper(config, settings, "cpu")
    peak_bytes = (
        measurement.account(lambda: [stepper.step([scene()], number=number) for number in (1, 2)]) or 0
    )
    result = (on_card - h200.cublas_workspace_bytes - h200.context_high_bytes) / budget.RESERVED_RATIO
    assert peak_bytes <= result < 2 * peak_bytes


@pytest.mark.parametrize("mode", ["batched", "accumulate"])
def test_the_prediction_for_a_card_includes_a_step_and_the_draw_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(budget, "CPU_BYTES", budget.GPU_BYTES)  # chunks of convolutions add nothing
    settings = replace(SETTINGS, views=["dense", "uniform:0.9:0.9"], views_mode=mode)
    on_card = views_mode_for(CONFIG, settings, [scene()], budget="h200", device="cuda").predicted_bytes
    h200 = budget.budget_of("h200")
    result = math.ceil(
        (on_card - h200.cublas_workspace_bytes - h200.context_high_bytes) / budget.RESERVED_RATIO
    )
    stepper = Stepper(CONFIG, settings, "cpu", prepares_ahead=True)

    def steps() -> None:
        for number in (1, 2):
            stepper.step([scene()], number=number)

    step_bytes = measurement.account(steps) or 0
    draw_bytes = measurement.account(lambda: stepper.draw(Batch.from_scenes([scene()]), number=1)) or 0
    assert 0 < draw_bytes < step_bytes
    assert step_bytes + draw_bytes <= result < 1.1 * (step_bytes + draw_bytes)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("whole_points", [40_000, 500])
@pytest.mark.parametrize(("cell", "moves"), [(0.1, False), (0.35, True)])
def test_a_recorder_with_what_is_predicted_expects_room_for_all_sizes(
    whole_points: int, cell: float, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truth: the tensors of a padded step of every size that a run draws, and the draws that are kept.

    With many points in a voxel, thin draws have almost as many voxels as full ones.
    """
    monkeypatch.setattr(budget, "WHOLE_POINTS", whole_points)
    monkeypatch.setattr(budget, "PART_POINTS", 1500)
    settings = replace(SETTINGS, views=["log-uniform:0.1:1"], points=2000, record_steps=True, augment=moves)
    config = replace(CONFIG, cell=cell)
    scenes = [scene(2000), scene(500)]
    choice = views_mode_for(config, settings, scenes, budget="1TB", device="cuda")
    eager = replace(settings, record_steps=False)
    eager_bytes = views_mode_for(config, eager, scenes, budget="1TB", device="cuda").predicted_bytes
    stepper = Stepper(config, settings, "cpu", prepares_ahead=True)
    sizes: dict[int, Sizes] = {}
    computed: dict[int, int] = {}
    read: dict[int, int] = {}
    rng = np.random.default_rng(0)
    for number in range(1, 25):
        one = augment(scenes[number % 2], rng) if moves else scenes[number % 2]
        batch = Batch.from_scenes([one])
        draw = stepper.draw(batch, number=number)
        own = sizes_of(draw)
        size = size_number(own.points)
        if size not in sizes or not sizes[size].hold(own):
            sizes[size] = own.with_room(largest_of_size(size), sizes.get(size))
            padded = pad_draw(draw, sizes[size])
            stepper.updates.clear()
            computed[size] = (
                measurement.account(lambda batch=batch, padded=padded: stepper.gradients(batch, padded)) or 0
            )
            read[size] = sum(one.nbytes for one in recorded_steps._tensors(padded))
    assert len(sizes) >= 5
    # The allocator reserves more than the tensors.
    reserved_bytes = round(budget.RESERVED_RATIO * max(computed.values()))
    expected_bytes = recordings_bytes(reserved_bytes, len(sizes)) + sum(read.values())
    assert expected_bytes <= choice.recordings_bytes
    assert eager_bytes < choice.predicted_bytes - choice.recordings_bytes, "padded steps are larger"


def test_recordings_have_one_memory_and_a_draw_and_a_graph_for_each_size() -> None:
    step = StepBytes(fixed_bytes=1000, growing_bytes=10_000)
    memory_bytes = round(1.4 * GAPS * (1000 + 14_000)) + WORKSPACE_BYTES
    assert forecast_recordings(step, 500, 1000, 1000) == memory_bytes + 700 + MOST_GRAPH_BYTES
    # Sizes are 1.4 times as large as the next smaller one; no draw takes more than the largest.
    assert forecast_recordings(step, 500, 510, 1000) == memory_bytes + 3 * 700 + 3 * MOST_GRAPH_BYTES


@pytest.mark.parametrize("view", ["log-uniform:0.1:1", "uniform:0.1:0.2"])
def test_no_draw_has_fewer_points_than_the_smallest_size(view: str) -> None:
    settings = replace(SETTINGS, views=[view], points=500)
    fewest = budget._fewest_points(settings, [scene(400)])
    stepper = Stepper(CONFIG, settings, "cpu", prepares_ahead=True)
    batch = Batch.from_scenes([scene(400)])
    draws = [sum(stepper.draw(batch, number=number).sizes) for number in range(1, 300)]
    assert fewest <= min(draws)


def test_recordings_get_what_the_budget_leaves() -> None:
    settings = replace(SETTINGS, views=["dense"], points=500, record_steps=True)
    whole = views_mode_for(CONFIG, settings, [scene(500)], budget="1TB", device="cuda")
    padded_bytes = whole.predicted_bytes - whole.recordings_bytes
    for left, expected in ((whole.recordings_bytes + 9, whole.recordings_bytes), (1234, 1234)):
        choice = views_mode_for(CONFIG, settings, [scene(500)], budget=padded_bytes + left, device="cuda")
        assert (choice.recordings_bytes, choice.predicted_bytes) == (expected, padded_bytes + expected)
        assert choice.recorded_need_bytes == whole.predicted_bytes


def test_views_are_batched_without_recordings_before_they_are_accumulated() -> None:
    settings = replace(SETTINGS, points=500, record_steps=True)
    whole = views_mode_for(CONFIG, settings, [scene(500)], budget="1TB", device="cuda")
    padded_bytes = whole.predicted_bytes - whole.recordings_bytes
    eager = views_mode_for(
        CONFIG, replace(settings, record_steps=False), [scene(500)], budget="1TB", device="cuda"
    )
    for budget_bytes, mode in (
        (padded_bytes, "batched"),
        (eager.predicted_bytes, "batched"),
        (eager.predicted_bytes - 1, "accumulate"),
    ):
        choice = views_mode_for(CONFIG, settings, [scene(500)], budget=budget_bytes, device="cuda")
        assert (choice.views_mode, choice.recordings_bytes) == (mode, 0)
        if mode == "batched":
            assert choice.predicted_bytes == eager.predicted_bytes < padded_bytes
            assert choice.recorded_need_bytes == whole.predicted_bytes


def test_steps_are_eager_by_default_if_their_recordings_do_not_fit() -> None:
    settings = replace(SETTINGS, views=["dense"], points=500, record_steps=Settings().record_steps)
    assert settings.record_steps is None
    eager, whole = (
        views_mode_for(
            CONFIG, replace(settings, record_steps=records), [scene(500)], budget="1TB", device="cuda"
        )
        for records in (False, True)
    )
    assert eager.recordings_bytes == eager.recorded_need_bytes == 0
    for budget_bytes, expected in ((whole.predicted_bytes, whole), (whole.predicted_bytes - 1, eager)):
        choice = views_mode_for(CONFIG, settings, [scene(500)], budget=budget_bytes, device="cuda")
        assert choice.predicted_bytes == expected.predicted_bytes
        assert choice.recordings_bytes == expected.recordings_bytes
        assert choice.recorded_need_bytes == whole.predicted_bytes
