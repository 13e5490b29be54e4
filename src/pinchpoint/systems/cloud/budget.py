"""Whether the views of a step may pass together within a budget: predicted before anything is trained.

The step is the trainer's own, taken on the CPU with parts of the largest scenes, every tensor of it counted; how many voxels
a scene has is known only by making them, so no fake tensors are used. A step of many points is not taken whole: two smaller
ones with as many points in a voxel tell what is fixed and what a point costs. On a CPU what this process holds already is
added; on CUDA the next step's points, which are made ready meanwhile, the context and a margin for the allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pinchpoint.backends.torch import measurement
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.cloud.data.batches import crop
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.convolution import CPU_BYTES, GPU_BYTES
from pinchpoint.systems.cloud.model.views import Batch, LogUniform, Uniform, View, draw_views, parse_views
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training_step import Stepper
from pinchpoint.systems.common.budgets import budget_of
from pinchpoint.systems.common.precision import resident_bytes

WHOLE = 40_000  # points of a step, all views together, up to which it is taken as it is
ROUNDED = 1.1  # what CUDA's allocator keeps beyond the tensors
BENT = 1.1  # what a straight line through two sizes, and one part of one scene, may lack


@dataclass(frozen=True)
class Way:
    """How views pass, and what a step is then predicted to take."""

    views_mode: str  # batched or accumulate
    predicted_bytes: int
    budget_bytes: int


def way_for(
    config: CloudConfig,
    settings: Settings,
    scenes: Sequence[Scene],
    *,
    budget: str | int,
    device: str,
    progress: Callable[[str], None] | None = None,
) -> Way:
    """The way that was chosen, or of auto the first that fits: batched, then accumulate; else `DoesNotFit`.

    scenes: those to train with.
    """
    within = budget_of(budget)
    budget_bytes = within.memory_bytes
    candidates: list[Way] = []
    for mode in ways_of(config, settings):
        if progress is not None:
            progress("all views at once" if mode == "batched" else "view after view")
        way = replace(settings, views_mode=mode)
        live = _count_bytes(config, way, scenes)
        if device == "cpu":
            need = resident_bytes() + live
        else:
            live += _gather_bytes(config, way, scenes) + _prefetch_bytes(config, way, scenes)
            need = round(live * ROUNDED) + within.cublas_workspace_bytes + within.context_bytes
        candidates.append(Way(mode, need, budget_bytes))
        if need <= budget_bytes:
            return candidates[-1]
    least = min(candidates, key=lambda way: way.predicted_bytes)
    fewer = (
        "--points or --scenes"
        if least.views_mode != "batched" or len(candidates) > 1
        else "--points, --scenes or --views"
    )
    scope = "with what this process holds already" if device == "cpu" else "context and margin included"
    raise DoesNotFit(
        f"A step needs {show_bytes(least.predicted_bytes)}, {scope}, but the budget is {show_bytes(budget_bytes)}.",
        hint=f"Raise --budget by at least {show_bytes(least.predicted_bytes - budget_bytes)}, or use fewer {fewer}.",
        need_bytes=least.predicted_bytes,
    )


def ways_of(config: CloudConfig, settings: Settings) -> tuple[str, ...]:
    """The ways a run may take, the fastest first. Batch statistics of all views together need all of them at once."""
    if settings.views_mode != "auto":
        return (settings.views_mode,)
    return ("batched",) if len(settings.views) == 1 or config.norm == "batch" else ("batched", "accumulate")


def _count_bytes(config: CloudConfig, settings: Settings, scenes: Sequence[Scene]) -> int:
    """Most bytes of tensors alive in a step with the largest scenes and the most points a view can have."""
    largest = max(scenes, key=lambda scene: scene.points)
    views = [_fullest(view) for view in parse_views(settings.views)]
    settings = replace(settings, views=[view.name for view in views], augment=False)
    points = min(settings.points, largest.points)
    most = points * settings.scenes * len(views)
    if most <= WHOLE:
        return _live(config, settings, largest, points)
    # A part of a scene holds as many points in a voxel as the whole.
    sizes = [max(1, round(points * share * WHOLE / most)) for share in (0.5, 1.0)]
    low, high = (_live(config, settings, largest, size) for size in sizes)
    each = (high - low) / (sizes[1] - sizes[0])
    return round(BENT * (high + each * (points - sizes[1])))


def _gather_bytes(config: CloudConfig, settings: Settings, scenes: Sequence[Scene]) -> int:
    """What a convolution reads at one time on CUDA beyond what it reads on a CPU, where the step is counted."""
    points = min(settings.points, max(scene.points for scene in scenes)) * settings.scenes
    passed = points * (1 if settings.views_mode == "accumulate" else len(settings.views))
    # The finest level's is the largest: coarser voxels are fewer by more than they are wider.
    whole = 27 * 4 * config.widths[0] * passed
    return max(0, min(GPU_BYTES, whole) - CPU_BYTES)


def _prefetch_bytes(config: CloudConfig, settings: Settings, scenes: Sequence[Scene]) -> int:
    """The next step's points, which on CUDA are moved there and drawn while this one computes: most bytes while they are."""
    largest = max(scenes, key=lambda scene: scene.points)
    points = min(settings.points, largest.points)
    part = crop(largest, max(1, min(points, WHOLE // settings.scenes)), np.random.default_rng(0))
    views = [_fullest(view) for view in parse_views(settings.views)]

    def prefetch() -> None:
        draw_views(
            Batch.from_scenes([part] * settings.scenes), views, cell=settings.cell or config.cell, seed=0
        )

    return round((measurement.account(prefetch) or 0) * points / part.points)


def _live(config: CloudConfig, settings: Settings, scene: Scene, points: int) -> int:
    part = crop(scene, points, np.random.default_rng(0))

    def steps() -> None:
        stepper = Stepper(config, settings, "cpu")
        for number in (1, 2):  # the optimizer's state is there from the first step on
            stepper.step([part] * settings.scenes, number=number)

    return measurement.account(steps) or 0


def _fullest(view: View) -> View:
    """The same view with as many points as it can have."""
    return Uniform(view.hi, view.hi) if isinstance(view, Uniform | LogUniform) else view
