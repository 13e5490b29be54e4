"""Predicts, before training, whether the views of a step fit into a budget together.

The trainer's own step runs on the CPU with crops of the largest scenes, and all its tensors are counted. The
number of voxels of a scene is known only after building them, so fake tensors cannot be used. On a CPU the
memory that this process already uses is added; on CUDA the prefetched points of the next step, the context
and a margin for the allocator.

A step of many points is extrapolated from a crop. The peak of a small step lies where the weights need most,
the peak of a large one where the points do: a line through two small steps would be too low. Weights,
gradients and the optimizer's state are therefore counted apart. The rest of a step grows with its points and
with its voxels at every level, none of which shrinks, so it grows at most as the number that grows most.
Scenes are rarely of even density: points and voxels are counted in crops of the full size, moved as in
training, at several places of the scenes.

Recorded steps are padded to sizes, and every size has a recording. Recordings use the same memory one after
another, and it gets gaps where the tensors of one do not fit between those of others. The forecast is that of
a `Recorder`, which makes no recording that it does not expect to fit, and drops all of them if they take more
than was predicted after all: the forecast is a limit that the run keeps. While a recording is made, eager
steps hold no memory, so that what it adds takes their place. A size that grows is recorded again; where the
gaps that it leaves would take more than was predicted, all recordings begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pinchpoint.backends.torch import measurement
from pinchpoint.core.host_memory import resident_bytes
from pinchpoint.systems.cloud.data.augmentation import augment
from pinchpoint.systems.cloud.data.batches import crop
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.convolution import CPU_BYTES, GPU_BYTES
from pinchpoint.systems.cloud.model.views import (
    Batch,
    Dense,
    LogUniform,
    Uniform,
    View,
    parse_views,
)
from pinchpoint.systems.cloud.model.voxels import check_extent, grid_keys
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training.recorded_steps import STEP, size_number
from pinchpoint.systems.cloud.training.training_step import Stepper
from pinchpoint.systems.common.budgets import budget_of, cpu_bytes, cuda_bytes, does_not_fit
from pinchpoint.systems.common.training import recorder

WHOLE_POINTS = 40_000  # points per step, over all views, up to which the step is counted whole
PART_POINTS = 120_000  # points of the part from which a larger step is extrapolated, over all views
DEVIATIONS = 5  # standard deviations by which a draw can have fewer points than its mean
PLACES = 8  # of crops in which voxels are counted
CROP_MARGIN = 1.1  # for crops of a run with more voxels than those in which they are counted
# What the caching allocator reserves, relative to the tensors: more than in steps of one size.
RESERVED_RATIO = 1.4


@dataclass(frozen=True)
class ViewsModeChoice:
    """A views mode, and the predicted bytes of a step with it."""

    views_mode: str  # batched or accumulate
    predicted_bytes: int
    budget_bytes: int
    recordings_bytes: int = 0  # of the predicted ones, for recorded steps
    # What the run would need with recorded steps; 0 if they cannot be recorded.
    recorded_need_bytes: int = 0


def views_mode_for(
    config: CloudConfig,
    settings: Settings,
    scenes: Sequence[Scene],
    *,
    budget: str | int,
    device: str,
    progress: Callable[[str], None] | None = None,
) -> ViewsModeChoice:
    """Return the views mode of the settings, or for auto the first that fits: batched, then accumulate.

    scenes: the training scenes. Raises `DoesNotFit` if none fits.
    """
    within = budget_of(budget)
    fewest_points = _fewest_points(settings, scenes)
    if settings.schedule == "alternate":
        # A step has one view; the one with the most points decides.
        most = max(parse_views(settings.views), key=_largest_share)
        settings = replace(settings, schedule="together", views=[most.name])
    budget_bytes = within.memory_bytes
    full = _full_sizes(config, settings, scenes)
    candidates: list[ViewsModeChoice] = []
    for mode in possible_views_modes(config, settings):
        if progress is not None:
            progress("all views at once" if mode == "batched" else "view after view")
        mode_settings = replace(settings, views_mode=mode)
        step = _count_bytes(config, mode_settings, scenes, full, prepares_ahead=device == "cuda")
        recordings_bytes = recorded_need_bytes = 0
        if device == "cpu":
            need = cpu_bytes(step.live_bytes, resident_bytes())
        else:
            draw_bytes = _prefetch_bytes(config, mode_settings, scenes, full)
            step = replace(step, fixed_bytes=step.fixed_bytes + _gather_bytes(config, mode_settings, scenes))
            need = cuda_bytes(step.live_bytes + draw_bytes, within, reserved=RESERVED_RATIO)
            if settings.record_steps is not False and mode == "batched":
                # Without room for any recording, steps are eager and not padded.
                padded_bytes = step.padded().live_bytes + draw_bytes + round(STEP * draw_bytes)
                padded_need = cuda_bytes(padded_bytes, within, reserved=RESERVED_RATIO)
                most_points = _most_points(mode_settings, scenes)
                recordings_bytes = forecast_recordings(step, draw_bytes, fewest_points, most_points)
                recorded_need_bytes = padded_need + recordings_bytes
                if recorded_need_bytes <= budget_bytes or (
                    settings.record_steps and padded_need < budget_bytes
                ):
                    # Recordings for which the budget leaves no room are not made.
                    need = padded_need
                    recordings_bytes = min(recordings_bytes, budget_bytes - need)
                else:
                    recordings_bytes = 0
        candidates.append(
            ViewsModeChoice(
                mode, need + recordings_bytes, budget_bytes, recordings_bytes, recorded_need_bytes
            )
        )
        if need <= budget_bytes:
            return candidates[-1]
    least = min(candidates, key=lambda choice: choice.predicted_bytes)
    fewer = (
        "--points or --scenes"
        if least.views_mode != "batched" or len(candidates) > 1
        else "--points, --scenes or --views"
    )
    scope = "including what this process already uses" if device == "cpu" else "including context and margin"
    raise does_not_fit(least.predicted_bytes, budget_bytes, how=f", {scope}", otherwise=f"use fewer {fewer}")


@dataclass(frozen=True)
class StepBytes:
    """The peak tensor bytes of a step: those that grow with its points and voxels, and the others."""

    fixed_bytes: int
    growing_bytes: int

    @property
    def live_bytes(self) -> int:
        return self.fixed_bytes + self.growing_bytes

    def padded(self) -> StepBytes:
        """The same of a step whose draw is padded, at most to the next size."""
        return replace(self, growing_bytes=round(STEP * self.growing_bytes))


def forecast_recordings(step: StepBytes, draw_bytes: int, fewest_points: int, most_points: int) -> int:
    """Return the bytes that the recordings of all sizes may take beside eager steps.

    step: of the largest step, without padding. draw_bytes: of its draw, which a recording reads and keeps;
    a thin draw can have almost as many voxels as a full one, so every size is counted with the largest.
    fewest_points, most_points: of a draw.
    """
    sizes = size_number(most_points) - size_number(fewest_points) + 1
    reserved_bytes = round(RESERVED_RATIO * step.padded().live_bytes)
    read_bytes = round(sizes * STEP * draw_bytes)
    spare_bytes = sizes * (recorder.MOST_GRAPH_BYTES - recorder.GRAPH_BYTES)
    return recorder.recordings_bytes(reserved_bytes, sizes) + read_bytes + spare_bytes


def _fewest_points(settings: Settings, scenes: Sequence[Scene]) -> int:
    """Return the fewest points a draw can have."""
    points = min(settings.points, min(scene.points for scene in scenes)) * settings.scenes
    fewest = [_fewest_of_view(view, points) for view in parse_views(settings.views)]
    return max(1, int(min(fewest) if settings.schedule == "alternate" else sum(fewest)))


def _most_points(settings: Settings, scenes: Sequence[Scene]) -> int:
    """Return the most points a draw can have."""
    points = min(settings.points, max(scene.points for scene in scenes)) * settings.scenes
    return points * len(settings.views)


def possible_views_modes(config: CloudConfig, settings: Settings) -> tuple[str, ...]:
    """Return the possible views modes, fastest first.

    Batch statistics over all views need all of them at once.
    """
    if settings.views_mode != "auto":
        return (settings.views_mode,)
    return (
        ("batched",) if settings.views_per_step == 1 or config.norm == "batch" else ("batched", "accumulate")
    )


def _count_bytes(
    config: CloudConfig,
    settings: Settings,
    scenes: Sequence[Scene],
    full: np.ndarray,
    *,
    prepares_ahead: bool,
) -> StepBytes:
    """Return the peak tensor bytes of a step with the largest scenes and the most points a view can have.

    full: from `_full_sizes`. prepares_ahead: whether the points and voxels of a step are prepared before it
    and live until its end.
    """
    views = [_fullest(view) for view in parse_views(settings.views)]
    step_settings = replace(settings, views=[view.name for view in views], augment=False)
    points = min(settings.points, max(scene.points for scene in scenes))
    most = points * settings.scenes * len(views)
    if most <= WHOLE_POINTS:
        part = _part(config, settings, scenes, full, points)
        whole = _live(config, step_settings, part.scene, prepares_ahead=prepares_ahead)
        return StepBytes(0, round(part.growth * whole))
    part = _part(config, settings, scenes, full, max(1, min(points, round(points * PART_POINTS / most))))
    bytes_of_part = _gradient_bytes(config, step_settings, part.scene, prepares_ahead=prepares_ahead)
    weight_bytes = _weight_bytes(config, step_settings)
    return StepBytes(weight_bytes, round(CROP_MARGIN * part.growth * bytes_of_part))


@dataclass(frozen=True)
class _Part:
    """A crop of a scene, and how many times as many points or voxels a step can have, at least 1."""

    scene: Scene
    growth: float


def _full_sizes(config: CloudConfig, settings: Settings, scenes: Sequence[Scene]) -> np.ndarray:
    """Return the most points, and voxels at every level, of crops of the full size at several places."""
    full = np.zeros(len(config.widths) + 1)
    for scene, number in _places(scenes):
        rng = np.random.default_rng(number)
        whole = crop(scene, settings.points, rng)
        moved = augment(whole, rng) if settings.augment else whole
        full = np.maximum(full, _sizes(moved, config, settings))
    return full


def _part(
    config: CloudConfig, settings: Settings, scenes: Sequence[Scene], full: np.ndarray, points: int
) -> _Part:
    """Return the crop of `points` points that is most like a step. full: from `_full_sizes`."""
    parts = [
        crop(scene, points, np.random.default_rng(number))
        for scene, number in _places([max(scenes, key=lambda scene: scene.points)])
    ]
    growths = [float(np.max(full / _sizes(part, config, settings))) for part in parts]
    best = int(np.argmin(growths))
    return _Part(parts[best], max(1.0, growths[best]))


def _places(scenes: Sequence[Scene]) -> list[tuple[Scene, int]]:
    """Return every scene at least once, and few scenes several times, each with a number of its own."""
    return [(scenes[number % len(scenes)], number) for number in range(max(PLACES, len(scenes)))]


def _sizes(scene: Scene, config: CloudConfig, settings: Settings) -> np.ndarray:
    """Return the number of points, and of voxels at every level, with the thinnest of the fullest views."""
    shares = [
        view.hi if isinstance(view, LogUniform) else 1.0 for view in parse_views(settings.views)
    ]  # other views keep a point of every cell
    kept = torch.from_numpy(scene.xyz[np.random.default_rng(0).random(scene.points) < min(shares)])
    counts = [scene.points]
    if not len(kept):
        return np.array([*counts, *[1] * len(config.widths)], np.float64)
    keys, _, largest = grid_keys(kept, torch.zeros(len(kept), dtype=torch.int64), 1, cell=config.cell)
    check_extent(float(largest), config.cell)
    for _ in config.widths:
        keys = torch.unique(keys)
        counts.append(len(keys))
        keys = keys >> 3
    return np.array(counts, np.float64)


def _gather_bytes(config: CloudConfig, settings: Settings, scenes: Sequence[Scene]) -> int:
    """Return the bytes that a convolution gathers at a time on CUDA beyond those on a CPU, where steps
    are counted.
    """
    points = min(settings.points, max(scene.points for scene in scenes)) * settings.scenes
    points_together = points * (1 if settings.views_mode == "accumulate" else len(settings.views))
    # The finest level gathers most: coarser levels lose more voxels than they gain features.
    whole = 27 * 4 * config.widths[0] * points_together
    return max(0, min(GPU_BYTES, whole) - CPU_BYTES)


def _prefetch_bytes(
    config: CloudConfig, settings: Settings, scenes: Sequence[Scene], full: np.ndarray
) -> int:
    """Return the peak bytes of prefetching: on CUDA the next step's points are copied, drawn and sorted into
    voxels during this step, and those of no later step (see `SideStream`).
    """
    points = min(settings.points, max(scene.points for scene in scenes))
    part = _part(config, settings, scenes, full, max(1, min(points, WHOLE_POINTS // settings.scenes)))
    views = [_fullest(view).name for view in parse_views(settings.views)]
    stepper = Stepper(config, replace(settings, views=views), "cpu", prepares_ahead=True)

    def prefetch() -> None:
        stepper.draw(Batch.from_scenes([part.scene] * settings.scenes), number=1)

    return round(part.growth * (measurement.account(prefetch) or 0))


def _live(config: CloudConfig, settings: Settings, scene: Scene, *, prepares_ahead: bool) -> int:
    """Return the peak bytes of whole steps with a scene."""

    def steps() -> None:
        stepper = Stepper(config, settings, "cpu", prepares_ahead=prepares_ahead)
        for number in (1, 2):  # the optimizer's state exists after the first step
            stepper.step([scene] * settings.scenes, number=number)

    return measurement.account(steps) or 0


def _weight_bytes(config: CloudConfig, settings: Settings) -> int:
    """Return the peak bytes of updates: the weights, all gradients, and the optimizer's state."""

    def updates() -> None:
        stepper = Stepper(config, settings, "cpu")
        for number in (1, 2):
            stepper.updates.begin(number)
            _fill_gradients(stepper)
            stepper.updates.finish(number)

    return measurement.account(updates) or 0


def _gradient_bytes(config: CloudConfig, settings: Settings, scene: Scene, *, prepares_ahead: bool) -> int:
    """Return the peak bytes of the gradients of a scene, beyond the weights and all their gradients."""
    stepper = Stepper(config, settings, "cpu", prepares_ahead=prepares_ahead)
    weight_bytes = sum(weight.nbytes for weight in stepper.model.parameters())

    def gradients() -> None:
        _fill_gradients(stepper)  # all of them are counted from here on
        batch = Batch.from_scenes([scene] * settings.scenes)
        stepper.gradients(batch, stepper.draw(batch, number=1))

    return max(0, (measurement.account(gradients) or 0) - 2 * weight_bytes)


def _fill_gradients(stepper: Stepper) -> None:
    for weight in stepper.model.parameters():
        weight.grad = torch.zeros_like(weight)


def _largest_share(view: View) -> float:
    """Return the largest share of the points that a view can have; one per cell is below any other."""
    if isinstance(view, Uniform | LogUniform):
        return view.hi
    return 1.0 if isinstance(view, Dense) else 0.0


def _fewest_of_view(view: View, points: int) -> float:
    """Return the fewest of these points that a view can have; one per cell can be any number."""
    if isinstance(view, Uniform | LogUniform):
        mean = view.lo * points
        return max(0.0, mean - DEVIATIONS * math.sqrt(mean))  # numbers are rounded at random in every cell
    return float(points) if isinstance(view, Dense) else 0.0


def _fullest(view: View) -> View:
    """Return the same view with the most points it can have."""
    return Uniform(view.hi, view.hi) if isinstance(view, Uniform | LogUniform) else view
